"""Texts of an engine, with the logits that it verified them by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clover.audit.judge import Reading
from clover.engine import Engine, Request
from clover.metrics import Acceptance
from clover.target import TargetModel


class TracedTarget(TargetModel):
    """A target that remembers the last logits it gave; it shares all else with the one it is made of."""

    def __init__(self, target: TargetModel):
        vars(self).update(vars(target))
        self.last: Tensor | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        self.last = super().logits(hidden)
        return self.last


@dataclass
class Trace:
    """What one way to decode wrote.

    Args:
        texts: the new tokens of each request.
        errors: per request, how far the engine's logits [M] are off the reference's at each verified position, root
            mean square; up to where the text leaves the reference's. Empty where steps are compiled.
    """

    texts: list[tuple[int, ...]]
    errors: list[list[float]]
    acceptance: Acceptance = field(default_factory=Acceptance)


def trace(
    engine: Engine,
    requests: Sequence[Request],
    max_sequences: int,
    known: Sequence[tuple[tuple[int, ...], Reading]] = (),
    progress: Callable[[int], None] = lambda tokens: None,
) -> Trace:
    """Decode requests, so many at once.

    Args:
        engine: of a `TracedTarget`.
        known: the reference's texts, one per request, if logits are to be compared.
        progress: called with the new tokens of each step.
    """
    target = engine.target
    assert isinstance(target, TracedTarget)
    found = Trace([()] * len(requests), [[] for _ in requests])
    decoding = engine.open(min(max_sequences, len(requests)))
    for request in requests:
        decoding.add(request)
    while not decoding.idle:
        target.last = None
        events = decoding.step()
        for row, event in enumerate(events):
            start = len(found.texts[event.index])
            found.texts[event.index] += event.tokens
            if known and target.last is not None:
                text, reading = known[event.index]
                nodes = list(event.path[: len(event.tokens)])
                kept = _agreeing(found.texts[event.index], text, start, len(nodes))
                found.errors[event.index] += _errors(target.last[row, nodes[:kept]], reading, start)
            if event.generation is not None:
                found.acceptance += event.generation.acceptance
        progress(sum(len(event.tokens) for event in events))
    return found


def _agreeing(text: tuple[int, ...], known: tuple[int, ...], start: int, count: int) -> int:
    """Of `count` tokens from `start` on, those that have the same tokens before them in both texts."""
    if text[:start] != known[:start]:
        return 0
    same = 0
    while same < min(count, len(known) - start) - 1 and text[start + same] == known[start + same]:
        same += 1
    return min(same + 1, len(known) - start)


def _errors(logits: Tensor, reading: Reading, start: int) -> list[float]:
    places = slice(start, start + len(logits))
    with torch.inference_mode():
        moved = logits.gather(1, reading.columns[places]).double() - reading.logits[places]
        return moved.square().mean(1).sqrt().tolist()
