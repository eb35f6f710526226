"""Runs and metrics made by hand."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from clover.drafting import parse_tree
from clover.engine import PhaseClock
from clover.measure.ceilings import Limits
from clover.measure.methods import Method
from clover.measure.speed import Measured, Metrics
from clover.measure.timing import Run
from clover.metrics import Acceptance

LIMITS = Limits(
    weight_bytes=4_000_000, flops_per_token=2_000_000, bytes_per_second=4e9, flops_per_second=1e10
)
PLAIN_STEP = {"draft": 0.0, "run": 0.008, "verify": 0.001, "keep": 0.0, "other": 0.001, "total": 0.010}
DRAFT_STEP = {"draft": 0.003, "run": 0.012, "verify": 0.001, "keep": 0.002, "other": 0.002, "total": 0.020}


@dataclass(frozen=True)
class Fake(Method):
    """A method that is never run, on an engine that is none."""

    fake: Any = None

    @property
    def engine(self) -> Any:
        return self.fake


def method(name: str, nodes: int = 1, drafts: bool = False) -> Method:
    """A method of ours that is never run, or one of transformers."""
    engine: Any = None
    if name not in ("transformers", "prompt lookup"):
        tree = parse_tree(name if ":" in name or name in ("plain", "auto") else "own")
        policy, draft = SimpleNamespace(max_nodes=nodes), object() if drafts else None
        engine = SimpleNamespace(draft=draft, policy=policy, tree=tree)
    return Fake(name, engine, engine)


def run(seconds: float, texts: tuple[tuple[int, ...], ...], histogram: list[int], **phases: float) -> Run:
    clock = PhaseClock()
    clock.seconds.update(phases)
    clock.steps = sum(histogram)
    attempts = [sum(histogram)] * (len(histogram) - 1)
    return Run(
        texts, seconds, Acceptance(histogram=histogram, attempts=attempts, drafted=sum(attempts)), clock
    )


def plain() -> Measured:
    """Six tokens of one batch, in 1, 2 and 4 s."""
    rounds = [run(seconds, ((1, 2, 3), (4, 5, 6)), [6]) for seconds in (1.0, 2.0, 4.0)]
    return Measured(method("plain"), [rounds], steps=PLAIN_STEP)


def drafted(name: str = "own") -> Measured:
    """Six tokens, one of them another, in 0.5, 0.5 and 2 s."""
    rounds = [run(seconds, ((1, 2, 3), (4, 5, 7)), [0, 0, 2]) for seconds in (0.5, 0.5, 2.0)]
    return Measured(method(name, 8, True), [rounds], steps=DRAFT_STEP)


def theirs(name: str = "transformers") -> Measured:
    return Measured(method(name), plain().batches)


def found(settings: list[tuple[int, float]], names: list[str]) -> list[Metrics]:
    """Metrics of plain decoding, of drafts by these names, and of transformers' generate."""
    made = []
    for size, temperature in settings:
        measured = [plain(), *map(drafted, names), theirs()]
        made += [one.metrics(measured[0], size, temperature, LIMITS) for one in measured]
    return made
