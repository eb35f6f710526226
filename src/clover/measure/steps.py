"""Time single decoding steps of several drafters, which alternate after a few steps within one run.

Texts do not depend on the drafter, so drafters may change within a run: all have the same contexts, and other load on
the machine slows all equally. (In `comparison` whole texts take turns, prefill included.) `StepCost` describes a tree's
steps by their median, and by a line

    seconds of a step that emits τ tokens of each sequence = fixed + per_token · τ,

because accepted tokens take time: they are kept in the caches, and committed to the draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle
from math import inf, pi, sqrt
from random import Random
from statistics import fmean, median

from clover.drafting import Drafter, Policy, StepOutcome, UpcomingStep
from clover.drafting.estimates import fit_line
from clover.drafts import DraftModel
from clover.engine import Engine, PhaseClock, Request
from clover.measure.budget import Budget
from clover.measure.report.progress import Progress
from clover.target import TargetWeights

# Steps per turn. The first is not counted, because the draft commits the steps before it, and the caches fill. Turns
# of the first round are shorter, so that all drafters have a measurement soon.
_TURN, _FIRST_TURN = 5, 3
_SHORTEST_RUN = 64  # the fewest new tokens of a text
_LEAST_FOR_A_LINE = 6  # steps; a slope through fewer would be noise
_ALMOST = 0.99  # the largest share that progress shows while steps of a batch size are timed
_ERROR_OF_MEDIAN = 1.4826 * sqrt(pi / 2)  # the factor from median absolute deviation to error, for one step


@dataclass(frozen=True)
class Step:
    """One decoding step: its seconds, the new tokens of each sequence, and the seconds of the target's pass.

    `verify_seconds` is None if the host did not wait for the GPU.
    """

    seconds: float
    emitted: tuple[int, ...]
    verify_seconds: float | None


@dataclass(frozen=True)
class StepCost:
    """The seconds of a step with one tree at one batch size.

    Attributes:
        batch_size: sequences.
        tree: name of the tree.
        nodes: rows of the target's pass per sequence, root included.
        seconds: the median.
        error: the standard error of the median, from the median absolute deviation, for a normal distribution.
        verify_seconds: the median of the target's pass.
        fixed, per_token: the line.
        steps: how many steps were timed.
    """

    batch_size: int
    tree: str
    nodes: int
    seconds: float
    error: float = 0.0
    verify_seconds: float = 0.0
    fixed: float = 0.0
    per_token: float = 0.0
    steps: int = 0

    @classmethod
    def of(cls, tree: str, nodes: int, steps: Sequence[Step]) -> StepCost:
        """Return the cost of a tree from its timed steps, at least one."""
        seconds = [step.seconds for step in steps]
        middle = median(seconds)
        per_token, fixed = 0.0, middle
        if len(steps) >= _LEAST_FOR_A_LINE:
            per_token, fixed = fit_line([(fmean(step.emitted), step.seconds) for step in steps])
        return cls(
            batch_size=len(steps[0].emitted),
            tree=tree,
            nodes=nodes,
            seconds=middle,
            error=_ERROR_OF_MEDIAN * median(abs(one - middle) for one in seconds) / sqrt(len(seconds)),
            verify_seconds=median(one.verify_seconds for one in steps if one.verify_seconds is not None),
            fixed=fixed,
            per_token=per_token,
            steps=len(steps),
        )

    def at(self, tau: float) -> float:
        """Return the seconds of a step that emits `tau` tokens of each sequence."""
        return self.fixed + self.per_token * tau


@dataclass(frozen=True)
class TimedSteps:
    """The seconds of each drafter's steps, by name, and of the prefill of one batch, including the draft's."""

    costs: dict[str, StepCost]
    prefill: float


class RoundRobinPolicy(Policy):
    """A policy that alternates between drafters, in a random order per round, and times their steps.

    On a GPU the last step of a turn waits for the device, to time the target's pass. `clock` must be passed to the runs
    with this policy; `steps` has the timed steps of each drafter.
    """

    def __init__(self, drafters: Mapping[str, Drafter], on_gpu: bool, seed: int = 0):
        self.max_nodes = max(drafter.max_nodes for drafter in drafters.values())
        self.max_depth = max(drafter.max_depth for drafter in drafters.values())
        self.clock = PhaseClock()
        self.steps: dict[str, list[Step]] = {name: [] for name in drafters}
        self._drafters, self._on_gpu, self._random = dict(drafters), on_gpu, Random(seed)
        self._waiting, self._current, self._left = list[str](), "", 0
        self._started, self._verified, self._counts = 0.0, 0.0, False

    def choose(self, upcoming: UpcomingStep) -> Drafter:
        if not self._left:
            self._waiting = self._waiting or self._round()
            self._current = self._waiting.pop()
            self._left, self._counts = _TURN if self.steps[self._current] else _FIRST_TURN, False
        self._left -= 1
        self.clock.synchronize = self._on_gpu and not self._left
        self._started, self._verified = time.perf_counter(), self.clock.seconds["run"]
        return self._drafters[self._current]

    def _round(self) -> list[str]:
        """Return the drafters of a round, the next one last; the first round begins with the first drafter."""
        names = list(self._drafters)
        order = self._random.sample(names, len(names))
        return order if any(self.steps.values()) else sorted(order, key=names[0].__eq__)

    def record(self, outcome: StepOutcome) -> None:
        seconds = time.perf_counter() - self._started
        verified = self.clock.seconds["run"] - self._verified
        if self._counts:
            known = self.clock.synchronize or not self._on_gpu
            step = Step(seconds, tuple(outcome.emitted), verified if known else None)
            self.steps[self._current].append(step)
        self._counts = True


def time_in_turn(
    target: TargetWeights,
    draft: DraftModel,
    drafters: Mapping[str, Drafter],
    batches: Sequence[Sequence[Request]],
    enough: Callable[[int], bool],
    seed: int = 0,
) -> TimedSteps:
    """Decode batches repeatedly with alternating drafters; return the seconds of each drafter's steps.

    Each batch is decoded until one of its sequences ends; end-of-sequence tokens are ignored. After each step, `enough`
    is called with the smallest number of steps of a drafter. The work ends when it returns True, and the first drafter
    and another one have steps; drafters without steps are left out.
    """
    assert draft.usable, "its engine would decode plainly for ever"
    on_gpu = target.device.type == "cuda"
    policy = RoundRobinPolicy(drafters, on_gpu, seed)
    engine = Engine(target, draft, policy=policy)
    for runs, batch in enumerate(cycle(batches), 1):
        policy.clock.synchronize = on_gpu  # during the prefill; each step sets it again
        with closing(engine.run([_lengthened(target, request) for request in batch], policy.clock)) as events:
            for event in events:
                first, *others = policy.steps.values()
                if enough(min(map(len, policy.steps.values()))) and first and (any(others) or not others):
                    steps = [(name, some) for name, some in policy.steps.items() if some]
                    costs = {name: StepCost.of(name, drafters[name].max_nodes, some) for name, some in steps}
                    return TimedSteps(costs, policy.clock.seconds["prefill"] / runs)
                if event.generation is not None:
                    break
    raise AssertionError("there is nothing to decode")


def share_time(
    batch_sizes: Sequence[int], budget: Budget, steps: int, fewest: int, progress: Progress
) -> Iterator[tuple[int, Callable[[int], bool]]]:
    """Yield batch sizes with the `enough` for `time_in_turn`, which ends the work of a size after `steps` steps.

    Each size has an equal part of the time left. After that part, `fewest` steps are enough, and after all time, any
    number. The first size is always yielded, others only if the fewest steps would end in time: they took `needed`
    seconds at the size before, and that time is assumed to grow with the square root of the size.
    """
    needed = 0.0
    for number, size in enumerate(batch_sizes):
        if number and needed * sqrt(max(size / batch_sizes[number - 1], 1.0)) > budget.left:
            return
        done, started, needed = 0, budget.used, inf
        part = budget.left / (len(batch_sizes) - number)

        def enough(count: int, number: int = number, started: float = started, part: float = part) -> bool:
            nonlocal done, needed
            done, spent = max(done, count), (budget.used - started) / max(part, 1e-9)
            if done >= fewest:
                needed = min(needed, budget.used - started)
            progress.reach(number + min(max(done / steps, spent), _ALMOST))
            return done >= (steps if spent < 1 else fewest) or budget.left <= 0

        progress.reach(number, f"batch size {size}: plain steps and trees in turn")
        yield size, enough
        budget.done += 1
    progress.reach(len(batch_sizes))


def _lengthened(target: TargetWeights, request: Request) -> Request:
    """Return a request that continues for enough steps, whatever tokens it writes."""
    room = target.longest_run - len(request.prompt)
    tokens = max(request.max_new_tokens, min(_SHORTEST_RUN, room))
    return replace(request, max_new_tokens=tokens, eos=())
