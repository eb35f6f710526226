"""Results made by hand: what a run would have left, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from clover.measure.ranks import TOP, HeadAccuracy
from clover.measure.report.provenance import Provenance
from clover.metrics import Acceptance
from experiments.compare.plan import MethodKey, digest
from experiments.compare.results import Decoded, Measurement, Record, Trained

ORIGIN = Provenance(
    "clover compare suite",
    "a machine",
    "cpu",
    "float32",
    1,
    {"clover": "1"},
    None,
    "2026-01-01T00:00:00+00:00",
)
Prompt = tuple[int, int, float, float]  # new tokens, steps, seconds, seconds of plain decoding


def decoded(method: MethodKey, prompts: Sequence[Prompt]) -> Decoded:
    """A method that wrote one batch per prompt, with at most one draft token accepted per step."""
    acceptances = [
        Acceptance([2 * steps - tokens, tokens - steps], [steps], steps) for tokens, steps, _, _ in prompts
    ]
    batches = tuple((tokens, seconds) for tokens, _, seconds, _ in prompts)
    return Decoded(method, 1, batches, tuple(acceptances), {"draft": 1.0, "run": 2.0}, len(prompts), True)


def measured(
    task: str, methods: Mapping[MethodKey, Sequence[Prompt]], config: dict[str, Any] | None = None
) -> Record:
    """A cell in which methods decoded the same prompts, after plain decoding."""
    prompts = next(iter(methods.values()))
    base = Decoded(
        MethodKey(), 0, tuple((tokens, plain) for tokens, _, _, plain in prompts),
        tuple(Acceptance([tokens]) for tokens, _, _, _ in prompts), {"draft": 0.0, "run": 1.0}, len(prompts), True,
    )  # fmt: skip
    result = Measurement(task, 1, 0.0, (base, *(decoded(*one) for one in methods.items())))
    given = {"tasks": {task: f"file {task}"}, "methods": [asdict(method) for method in methods]}
    return _record(result, given, config)


def trained(
    method: MethodKey,
    right: Mapping[str, Sequence[tuple[int, int]]],
    against: str | None = None,
    config: dict[str, Any] | None = None,
) -> Record:
    """A draft with one head: by task, text by text, how often the head is right, and of how many positions."""
    texts = [one for task in right.values() for one in task]
    counts = tuple(((count,) * len(TOP),) for count, _ in texts)
    heads = HeadAccuracy(tuple((positions,) for _, positions in texts), counts, counts)
    tasks = {task: f"file {task}" for task in right}
    result = Trained(method, 10, 20, 30.0, 0.5, heads, against)
    return _record(result, {"tasks": tasks, "method": asdict(method)}, config)


def _record(result: Measurement | Trained, given: dict[str, Any], more: dict[str, Any] | None) -> Record:
    place = {"target": "tiny", "device": "cpu", "dtype": "float32", "weights": "0" * 32}
    config = {"place": place, "prompts": 2, "max_new_tokens": 8} | given | (more or {})
    return Record(digest(config), "a cell", 1.0, config, result, "By hand", "", ORIGIN)
