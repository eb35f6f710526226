"""What steps with each tree take at one batch size, and so how fast each is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from clover.drafting import PLAIN_DRAFTER, StaticDrafter
from clover.drafting.tuning import PLAIN, Choice, VerifyCost
from clover.drafts import DraftModel
from clover.engine import Request
from clover.target import TargetModel
from clover.tree import TreeShape
from clover.tune.round_robin import Step, time_in_turn
from clover.tune.shapes import Candidate

_ROOT = TreeShape()  # the tree of plain decoding


@dataclass(frozen=True)
class Timed:
    """Steps with one tree at one batch size.

    Args:
        choice: as it is saved.
        nodes: of each sequence's tree, root included.
        verify_seconds: of the target's pass, the median.
        steps: that were timed.
        speedup: against plain decoding, prefill left out.
    """

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
    """Time plain steps and trees in turn.

    Args:
        batches: of equal size.
        enough, seed: see `time_in_turn`.

    Returns:
        the fastest first, plain decoding among them.
    """
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
