"""Which engines there are, and which environment and files each needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.peers.peer import Settings
from clover.errors import UserError

ROOT = Path(__file__).parents[2]
ANCHOR = "clover-bf16"  # our plain decoding in bfloat16, which every engine takes turns with


@dataclass(frozen=True)
class Engine:
    """An engine with its weights and its way to decode.

    Args:
        module: of the worker, in this package unless it has dots.
        environment: the directory of its Python environment in the root of the checkout, which `make peers` sets up;
            empty for the one that runs.
        weights, method: as in `benchmarks.peers.peer.Settings`.
        needs: options that must be given, such as "draft".
        converts: whether files are made for it first.
    """

    family: str
    module: str
    environment: str
    weights: str
    method: str = "plain"
    needs: tuple[str, ...] = ()
    converts: bool = False

    @property
    def name(self) -> str:
        """Return the name that chooses it."""
        return "-".join([self.family, self.weights, *([self.method] if self.method != "plain" else [])])

    @property
    def plain(self) -> str:
        """Return the name of the same engine without speculation."""
        return f"{self.family}-{self.weights}"

    def python(self, root: Path = ROOT) -> Path:
        """Return the interpreter of its environment."""
        return root / self.environment / "bin/python" if self.environment else Path(sys.executable)

    def why_not(self, settings: Settings, root: Path = ROOT) -> str | None:
        """Return why it cannot run with these options, and what to do about it; None if it can."""
        if missing := [name for name in self.needs if not getattr(settings, name)]:
            return f"it needs --{missing[0]}"
        if not self.python(root).is_file():
            return f"{self.environment} is missing; set it up by: make peers"
        return None


def _engines() -> tuple[Engine, ...]:
    ours = [
        Engine("clover", "ours", "", weights, method, ("draft",) if method in ("draft", "clover2") else ())
        for weights in ("bf16", "int8")
        for method in ("plain", "lookup", "draft", "clover2")
    ]
    generate = [
        Engine("generate", "generate", "", "bf16", method, needs)
        for method, needs in {"plain": (), "lookup": (), "assisted": ("assistant",)}.items()
    ]
    llama = [
        Engine("llama.cpp", "llama", ".venv-llama", weights, method, ("gguf",), weights != "Q4_K_M")
        for weights in ("Q4_K_M", "Q8_0")
        for method in ("plain", "lookup")
    ]
    openvino = [
        Engine("openvino", "genai", ".venv-openvino", weights, method, needs, True)
        for weights in ("int8", "int4")
        for method, needs in {"plain": (), "lookup": (), "assisted": ("assistant",)}.items()
    ]
    vllm = [
        Engine("vllm", "vllm_cpu", ".venv-vllm", "bf16", method, needs, method == "draft")
        for method, needs in {"plain": (), "draft": ("draft",)}.items()
    ]
    return (*ours, *generate, *llama, *openvino, *vllm)


ENGINES = {engine.name: engine for engine in _engines()}


def choose(patterns: list[str] | None) -> list[Engine]:
    """Return the engines whose names match a pattern such as "openvino-*", all of them without one, the anchor first.

    UserError for a pattern that matches none.
    """
    for pattern in patterns or ():
        if not any(fnmatch(name, pattern) for name in ENGINES):
            raise UserError(f"no engine is called {pattern}; there are {', '.join(ENGINES)}")
    chosen = [name for name in ENGINES if not patterns or any(fnmatch(name, one) for one in patterns)]
    return [ENGINES[name] for name in dict.fromkeys([ANCHOR, *chosen])]
