"""Texts that are learnt again while the target's states of them are at hand.

The target's pass is half of a step's time and more, and a draft learns from a text that it has met once nearly as much
as from a new one (data echoing: Choi and others, 1907.05550). So a run with a budget of minutes learns more of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from clover.train.learner import Known

_TOKENS_BETWEEN = (
    2**14
)  # that are learnt, about, before a text comes again: at once it would teach nothing new


@dataclass(eq=False)
class _Step:
    """The texts of a step, their tokens, and how often they are still to be learnt."""

    known: list[Known]
    tokens: int
    left: int


class Echoes:
    """The texts of the last steps, each of which is learnt `times` times in all, in a random order."""

    def __init__(self, times: int, seed: int):
        self._times, self._random = times, random.Random(seed)
        self._steps: list[_Step] = []
        self._due = 0  # steps that are to be learnt again before the next new one

    def add(self, known: list[Known]) -> None:
        """Keep what has been learnt for the first time."""
        if self._times == 1:
            return
        tokens = sum(int(batch.lengths.sum()) for batch, _ in known)
        self._steps.append(_Step(known, tokens, self._times - 1))
        if sum(step.tokens for step in self._steps) > _TOKENS_BETWEEN:
            self._due = self._times - 1

    def take(self) -> list[Known] | None:
        """What is to be learnt again now; None if new texts are."""
        if not self._due:
            return None
        self._due -= 1
        step = self._random.choice(self._steps)
        step.left -= 1
        if not step.left:
            self._steps.remove(step)
        return step.known
