"""Decode with an engine and keep the errors of the logits that it verified its texts by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clover.audit.judge import LogitProbe
from clover.engine import Engine, Request
from clover.metrics import Acceptance
from clover.target import TargetModel


class TracedTarget(TargetModel):
    """A target that remembers the last logits it computed; it shares all else with the one it is made of."""

    def __init__(self, target: TargetModel):
        vars(self).update(vars(target))
        self.last: Tensor | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        self.last = super().logits(hidden)
        return self.last


@dataclass
class Trace:
    """The new tokens of each request, and how far the engine's logits are off the reference's.

    `errors` has, per request, a root mean square over the M compared tokens for each verified position, up to where
    the text leaves the reference's. It is empty where steps are compiled.
    """

    texts: list[tuple[int, ...]]
    errors: list[list[float]]
    acceptance: Acceptance = field(default_factory=Acceptance)


def trace(
    engine: Engine,
    requests: Sequence[Request],
    max_sequences: int,
    known: Sequence[tuple[tuple[int, ...], LogitProbe]] = (),
    progress: Callable[[int], None] = lambda tokens: None,
) -> Trace:
    """Decode requests with an engine of a `TracedTarget`, at most `max_sequences` together.

    Args:
        known: the reference's texts, one per request, if logits are to be compared.
        progress: called with the number of new tokens of each step.
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
                text, probe = known[event.index]
                nodes = list(event.path[: len(event.tokens)])
                nodes = nodes[: _agreeing(found.texts[event.index], text, start, len(nodes))]
                found.errors[event.index] += _errors(target.last[row, nodes], probe, start)
            if event.generation is not None:
                found.acceptance += event.generation.acceptance
        progress(sum(len(event.tokens) for event in events))
    return found


def _agreeing(text: tuple[int, ...], known: tuple[int, ...], start: int, count: int) -> int:
    """Return how many of `count` tokens from `start` on have the same tokens before them in both texts."""
    ends = range(start, min(start + count, len(known)))
    return sum(text[:end] == known[:end] for end in ends)


def _errors(logits: Tensor, probe: LogitProbe, start: int) -> list[float]:
    places = slice(start, start + len(logits))
    with torch.inference_mode():
        moved = logits.gather(1, probe.columns[places]).double() - probe.logits[places]
        return moved.square().mean(1).sqrt().tolist()
