"""Texts that are learnt again while the target's states of them are at hand.

A draft learns from a text that it has met once nearly as much as from a new one, without the target's pass over it
(data echoing: Choi and others, 1907.05550). So a run with a budget of minutes learns more of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from clover.train.learner import Known

_TOKENS_KEPT = (
    2**14
)  # with padding; so a text comes again some steps later, where at once it would teach little


@dataclass(eq=False)
class _Step:
    """The texts of a step, their tokens with padding, and how often they are still to be learnt."""

    known: list[Known]
    tokens: int
    left: int


class Echoes:
    """The texts of the last steps, each of which is learnt `times` times in all, in a random order."""

    def __init__(self, times: int, seed: int):
        self.times, self._random = times, random.Random(seed)
        self._steps: list[_Step] = []

    def add(self, known: list[Known]) -> None:
        """Keep what is learnt for the first time now."""
        if self.times > 1:
            tokens = sum(batch.tokens.numel() for batch, _ in known)
            self._steps.append(_Step(known, tokens, self.times - 1))

    def take(self) -> list[Known] | None:
        """What is to be learnt again now, to make room, but not the last step; None if new texts are."""
        earlier = self._steps[:-1]
        if not earlier or sum(step.tokens for step in self._steps) <= _TOKENS_KEPT:
            return None
        step = self._random.choice(earlier)
        step.left -= 1
        if not step.left:
            self._steps.remove(step)
        return step.known
