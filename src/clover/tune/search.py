"""Which trees are worth trying at one batch size: measured costs and counted acceptance put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clover.tree import TreeShape
from clover.tune.costs import CostModel
from clover.tune.shapes import Candidate

MOST_NODES = 64  # draft tokens of a static tree
MOST_DEPTHS = 12  # of a tree; each takes its share of the time in which ranks and costs are measured
_STATIC = 3  # static trees that are tried
_ALIKE = 0.8  # share of nodes in common above which two trees are not both tried
_BEAM = 3
_LEAST_CHANCE, _MOST_CHANCE = 0.01, 0.9


@dataclass(frozen=True)
class Prediction:
    """What a static tree should do at one batch size.

    Args:
        step_seconds: of a whole decoding step.
        tokens_per_second: of the whole batch, τ · batch size / step_seconds.
        speedup: over plain steps that were measured in the same run.
    """

    candidate: Candidate
    step_seconds: float
    tokens_per_second: float
    speedup: float


def predict(model: CostModel, candidates: Sequence[Candidate]) -> list[Prediction]:
    """What every candidate should do, the fastest first."""
    found = []
    for candidate in candidates:
        seconds = model.step(candidate.shape)
        speed = candidate.tau * model.costs.batch_size / seconds
        found.append(Prediction(candidate, seconds, speed, candidate.tau * model.plain_step() / seconds))
    return sorted(found, key=lambda one: (-one.tokens_per_second, one.candidate.shape.budget))


def worth_trying(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The fastest static trees, without those that are nearly the same as a faster one.

    Neighbours in size differ by less than the error of measuring; a tree of another size or depth tells more.
    """
    tried: list[Prediction] = []
    for one in predictions:
        if all(_alike(one.candidate, other.candidate) <= _ALIKE for other in tried):
            tried.append(one)
        if len(tried) == _STATIC:
            break
    return tried


def rules_worth_trying(best: TreeShape, batch_size: int, depth: int, least: float) -> list[str]:
    """Trees that are grown anew at each step, of about the size of the best static one, and chains that end early.

    Args:
        depth: chains are no longer.
        least: what `break_even` says.
    """
    sizes = dict.fromkeys((best.budget, max(best.budget // 2, 1)))
    rules = [f"budget:{best.budget}", *(f"eagle2:{size}:{_BEAM}:{best.max_depth}" for size in sizes)]
    # The draft has always seen one token less than it would have to know to end in time: so a lower bound, too.
    return rules + ([f"chain:{depth}:{bound:.2g}" for bound in (least, least / 2)] if depth > 1 else [])


def break_even(model: CostModel, depth: int, tokens_per_second: float) -> float:
    """How likely the next token of a chain has to be accepted to be worth its time.

    Args:
        depth: of the chains whose costs are compared with those of a single token.
        tokens_per_second: of the whole batch, that the time would yield elsewhere.
    """
    further = model.step(TreeShape.chain(depth)) - model.step(TreeShape.chain(1))
    chance = further / max(depth - 1, 1) * tokens_per_second / model.costs.batch_size
    return min(max(chance, _LEAST_CHANCE), _MOST_CHANCE)


def _alike(one: Candidate, other: Candidate) -> float:
    """Of the nodes of either tree the share that both have."""
    mine, its = set(one.shape.paths), set(other.shape.paths)
    return len(mine & its) / len(mine | its)
