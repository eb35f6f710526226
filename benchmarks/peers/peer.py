"""The worker's side: an engine, loaded once in an environment of its own, answers lines of JSON. Needs Python alone.

The one argument of a worker is a JSON object, the fields of `Settings`. It says {"ready": ...} once the model is
loaded, and then answers each line of its standard input by a line on its standard output:

    {"do": "generate", "prompts": [[5, 7], ...], "max_new_tokens": 64}   {"texts": [[9, 2], ...], "seconds": 1.25}
    {"do": "perplexity", "tokens": [5, 7, ...]}                          {"perplexity": 3.5}
    {"do": "memory"}                                                     {"peak": 3000000000, "own": 1000000000}

What fails is answered by {"error": "one line"}. It ends with its standard input.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from math import exp
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Settings:
    """What a worker loads, and how.

    Args:
        target: a Hugging Face directory; `gguf` is a file with the same weights, `assistant` the directory of a small
            model, `draft` that of a trained draft; empty where none was given.
        weights: such as "bf16", "int8", "Q4_K_M".
        method: "plain", "lookup", "assisted" or "draft", or a tree of ours.
        eos: tokens that end a text.
        threads: of the engine.
        max_length: most tokens of a text, new ones included.
        max_batch: most texts together.
        made: folder of converted models.
        prepare: convert models, and end.
    """

    target: str
    gguf: str
    assistant: str
    draft: str
    weights: str
    method: str
    eos: tuple[int, ...]
    threads: int
    max_length: int
    max_batch: int
    made: str
    prepare: bool = False


class Peer(Protocol):
    """A loaded engine. `batches` says whether several texts run together, `packages` what decides about its speed."""

    batches: bool
    packages: Sequence[str]

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        """Return the new tokens of each prompt, decoded greedily."""
        ...

    def perplexity(self, tokens: list[int]) -> float:
        """Return that of a text, given its first token."""
        ...


def serve(load: Callable[[Settings], Peer], prepare: Callable[[Settings], None] | None = None) -> None:
    """Run this process as a worker; `prepare` makes the files that `load` reads where they are missing."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    fields = json.loads(sys.argv[1])
    settings = Settings(**fields | {"eos": tuple(fields["eos"])})
    try:
        if settings.prepare:
            if prepare is not None:
                prepare(settings)
            say({"ready": True})
            return
        peer = load(settings)
        say(
            {
                "ready": True,
                "batches": peer.batches,
                "versions": {name: version(name) for name in peer.packages},
            }
        )
        for line in sys.stdin:
            say(_answer(peer, settings, json.loads(line)))
    except Exception as error:  # noqa: BLE001 (whatever a foreign engine raises is told to who asked)
        say({"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]})


def _answer(peer: Peer, settings: Settings, asked: dict[str, Any]) -> dict[str, Any]:
    match asked["do"]:
        case "generate":
            started = time.perf_counter()
            texts = peer.generate(asked["prompts"], asked["max_new_tokens"])
            seconds = time.perf_counter() - started
            return {
                "texts": [cut(text, settings.eos, asked["max_new_tokens"]) for text in texts],
                "seconds": seconds,
            }
        case "perplexity":
            found = peer.perplexity(asked["tokens"])
            with suppress(OSError):  # the peak begins anew, because no text needs what this took
                Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
            return {"perplexity": found}
        case "memory":
            return memory()
    raise ValueError(f"{asked['do']!r} is none of generate, perplexity, memory")


def cut(text: Sequence[int], eos: Sequence[int], longest: int) -> list[int]:
    """Return a text up to its first end-of-sequence token, which is its last, and at most so many tokens.

    >>> cut([5, 2, 0, 7], eos=[0], longest=8), cut([5, 2, 0, 7], eos=[0], longest=2)
    ([5, 2, 0], [5, 2])
    """
    ends = [at + 1 for at, token in enumerate(text) if token in eos]
    return list(text[: min([longest, *ends[:1]])])


def memory() -> dict[str, int]:
    """Return bytes of memory of this process: the most it had, mapped files included, and its own now, without them."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = {name: 1024 * int(size) for name, size in re.findall(r"(\w+):\s+(\d+) kB", status)}
    return {"peak": found["VmHWM"], "own": found["RssAnon"] + found["RssShmem"]}


def mark(place: str) -> str:
    """Return a digest of a file or a directory: of its path, and of the sizes and times of its files."""
    path = Path(place).resolve()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    facts = [str(path), *((name, status.st_size, status.st_mtime_ns) for name, status in stats)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def perplexity_of(log_probabilities: Sequence[float]) -> float:
    """Return the perplexity of a text from the natural logarithms of its tokens' probabilities.

    >>> round(perplexity_of([-0.5, -1.5]), 4)
    2.7183
    """
    return exp(-sum(log_probabilities) / len(log_probabilities))
