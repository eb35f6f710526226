"""Decode with drafters that take turns from step to step, and note what each step took.

Texts do not depend on what drafts, so drafters may change within a run: whatever else the machine does then slows all
of them alike, and all of them see the same contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from random import Random

from clover.drafting import Drafter, Policy, Running, StepOutcome
from clover.drafts import DraftModel
from clover.engine import Engine, PhaseClock, Request
from clover.target import TargetModel


@dataclass(frozen=True)
class Step:
    """One decoding step: what the engine told of it, and the seconds of the target's pass in it."""

    outcome: StepOutcome
    verify_seconds: float

    @property
    def other_seconds(self) -> float:
        """What was neither drafting nor the target's pass."""
        return self.outcome.seconds - self.outcome.draft_seconds - self.verify_seconds


class Turns(Policy):
    """A policy that lets drafters take turns, in an order that is drawn anew for each round, and notes the steps.

    Args:
        drafters: None among them stands for plain steps.
        clock: that of the run.
        seed: of the order.

    Attributes:
        steps: of each drafter.
    """

    def __init__(self, drafters: Sequence[Drafter | None], clock: PhaseClock, seed: int = 0):
        self.drafters, self.clock = list(drafters), clock
        self.max_nodes = max(1 if drafter is None else drafter.max_nodes for drafter in drafters)
        self.max_depth = max(0 if drafter is None else drafter.max_depth for drafter in drafters)
        self.steps: list[list[Step]] = [[] for _ in drafters]
        self._random, self._waiting, self._current, self._verified = Random(seed), list[int](), 0, 0.0

    def choose(self, running: Running) -> Drafter | None:
        everyone = range(len(self.drafters))
        self._waiting = self._waiting or self._random.sample(everyone, len(everyone))
        self._current = self._waiting.pop()
        self._verified = self.clock.seconds["verify"]
        return self.drafters[self._current]

    def record(self, outcome: StepOutcome) -> None:
        self.steps[self._current].append(Step(outcome, self.clock.seconds["verify"] - self._verified))


def watch(
    target: TargetModel,
    draft: DraftModel | None,
    drafters: Sequence[Drafter | None],
    requests: Sequence[Request],
    seed: int = 0,
    synchronize: bool = False,
) -> list[list[Step]]:
    """Decode requests as one batch until a row ends.

    Args:
        draft: that of the drafters; None for plain decoding without one.
        drafters: take turns.
        seed: of their order.
        synchronize: wait for a GPU after each phase, see `PhaseClock`.

    Returns:
        the steps of each drafter in which all rows ran.
    """
    clock = PhaseClock(synchronize)
    turns = Turns(drafters, clock, seed)
    with closing(Engine(target, draft, policy=turns).run(requests, clock)) as events:
        for event in events:
            if event.generation is not None:
                break
    return [[step for step in steps if step.outcome.batch_size == len(requests)] for steps in turns.steps]
