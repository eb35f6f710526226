"""What steps take: decode with drafters that take turns, a few steps each, and note what each step took.

Texts do not depend on what drafts, so drafters may change within a run: all see the same contexts, and whatever else
the machine does slows all of them alike.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle
from random import Random
from statistics import median

from clover.drafting import PLAIN_DRAFTER, Drafter, Policy, Running, StaticDrafter, StepOutcome
from clover.drafting.tuning import PLAIN, Choice, VerifyCost
from clover.drafts import DraftModel
from clover.engine import Engine, PhaseClock, Request
from clover.measure.report.progress import Progress
from clover.measure.tune.shapes import Candidate
from clover.target import TargetModel
from clover.tree import TreeShape

_TURN = 5  # steps; the first is not counted: in it the draft catches up, and the caches fill with its weights
_SHORTEST_RUN = 64  # new tokens
_ROOT = TreeShape()  # the tree of plain decoding


@dataclass(frozen=True)
class Step:
    """One decoding step: its seconds, the tokens of each sequence, and the seconds of the target's pass.

    The last is None where the host did not wait for the GPU.
    """

    seconds: float
    emitted: tuple[int, ...]
    verify_seconds: float | None


class RoundRobinPolicy(Policy):
    """Lets drafters take turns, in an order that is drawn anew for each round, and notes their steps.

    On a GPU the device is waited for, to time the target's pass, in the last step of a turn. `clock` is for the runs
    that the policy decides in.
    """

    def __init__(self, drafters: Mapping[str, Drafter], on_gpu: bool, seed: int = 0):
        self.max_nodes = max(drafter.max_nodes for drafter in drafters.values())
        self.max_depth = max(drafter.max_depth for drafter in drafters.values())
        self.clock = PhaseClock()
        self.steps: dict[str, list[Step]] = {name: [] for name in drafters}
        self._drafters, self._on_gpu, self._random = dict(drafters), on_gpu, Random(seed)
        self._waiting, self._current, self._left = list[str](), "", 0
        self._started, self._verified = 0.0, 0.0

    def choose(self, running: Running) -> Drafter:
        if not self._left:
            self._waiting = self._waiting or self._random.sample(list(self._drafters), len(self._drafters))
            self._current, self._left = self._waiting.pop(), _TURN
        self._left -= 1
        self.clock.synchronize = self._on_gpu and not self._left
        self._started, self._verified = time.perf_counter(), self.clock.seconds["verify"]
        return self._drafters[self._current]

    def record(self, outcome: StepOutcome) -> None:
        seconds = time.perf_counter() - self._started
        verified = self.clock.seconds["verify"] - self._verified
        if self._left < _TURN - 1:
            known = self.clock.synchronize or not self._on_gpu
            step = Step(seconds, tuple(outcome.emitted), verified if known else None)
            self.steps[self._current].append(step)


def time_in_turn(
    target: TargetModel,
    draft: DraftModel,
    drafters: Mapping[str, Drafter],
    batches: Sequence[Sequence[Request]],
    enough: Callable[[int], bool],
    seed: int = 0,
) -> dict[str, list[Step]]:
    """Decode batches, again and again, with drafters that take turns from step to step.

    Each batch is decoded until one of its sequences ends, end-of-sequence tokens not counted. `enough` is asked after
    each with the fewest steps of a drafter; the work ends when it says so.
    """
    assert draft.usable, "its engine would decode plainly for ever"
    policy = RoundRobinPolicy(drafters, target.device.type == "cuda", seed)
    engine = Engine(target, draft, policy=policy)
    for batch in cycle(batches):
        with closing(engine.run([_long(target, request) for request in batch], policy.clock)) as events:
            for event in events:
                if event.generation is not None:
                    break
        if enough(min(map(len, policy.steps.values()))):
            return policy.steps
    raise AssertionError("there is nothing to decode")


def share_time(
    batch_sizes: Sequence[int], minutes: float, wanted: int, fewest: int, progress: Progress
) -> Iterator[tuple[int, Callable[[int], bool]]]:
    """Each batch size with its part of the time that is left, as `enough` of `time_in_turn`; see `until`."""
    end = time.monotonic() + 60 * minutes
    for number, size in enumerate(batch_sizes):
        progress.reach(number, f"batch size {size}: plain steps and trees in turn")
        yield size, until(wanted, fewest, (end - time.monotonic()) / (len(batch_sizes) - number))
    progress.reach(len(batch_sizes))


def until(wanted: int, fewest: int, seconds: float) -> Callable[[int], bool]:
    """Says whether so many steps are enough: those that are wanted, or the fewest once so many seconds are over."""
    end = time.monotonic() + seconds
    return lambda steps: steps >= (wanted if time.monotonic() < end else fewest)


def _long(target: TargetModel, request: Request) -> Request:
    """A request that goes on for some steps, whatever the text."""
    room = target.longest_run - len(request.prompt)
    tokens = max(request.max_new_tokens, min(_SHORTEST_RUN, room))
    return replace(request, max_new_tokens=tokens, eos=())


@dataclass(frozen=True)
class Timed:
    """Steps with one tree (`nodes` with its root) at one batch size; the speed-up leaves the prefill out."""

    choice: Choice
    nodes: int
    verify_seconds: float
    steps: int
    speedup: float


def time_trees(
    target: TargetModel,
    draft: DraftModel,
    batches: Sequence[Sequence[Request]],
    candidates: Sequence[Candidate],
    enough: Callable[[int], bool],
    seed: int = 0,
) -> list[Timed]:
    """Time plain steps and trees in turn, see `time_in_turn`; the fastest first, plain decoding among them."""
    every = {PLAIN: Candidate(_ROOT, 1.0), **{one.spec: one for one in candidates}}
    drafters = {one.spec: StaticDrafter(draft, one.shape) for one in candidates}
    steps = time_in_turn(target, draft, {PLAIN: PLAIN_DRAFTER, **drafters}, batches, enough, seed)
    plain = median(step.seconds for step in steps[PLAIN])
    found = [_timed(name, one, steps[name], plain) for name, one in every.items()]
    return sorted(found, key=lambda one: -one.speedup)


def _timed(name: str, candidate: Candidate, steps: Sequence[Step], plain: float) -> Timed:
    size, seconds = len(steps[0].emitted), median(step.seconds for step in steps)
    return Timed(
        choice=Choice(size, name, candidate.tau, seconds, size * candidate.tau / seconds),
        nodes=len(candidate.shape.parents),
        verify_seconds=median(s.verify_seconds for s in steps if s.verify_seconds is not None),
        steps=len(steps),
        speedup=candidate.tau * plain / seconds,
    )


def verify_costs(timed: Iterable[Timed]) -> list[VerifyCost]:
    """Of the target's pass by its nodes and batch size; the median of trees of one size."""
    found: dict[tuple[int, int], list[float]] = {}
    for one in timed:
        found.setdefault((one.choice.batch_size, one.nodes), []).append(one.verify_seconds)
    return [VerifyCost(size, nodes, median(seconds)) for (size, nodes), seconds in sorted(found.items())]
