"""What the parts of a decoding step cost: the target's pass by the size of the tree, drafting by its shape, the rest.

Probe trees of many sizes and plain steps take turns within one run, so medians over their steps compare.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from clover.drafting import make_drafter
from clover.drafting.tuning import PLAIN, VerifyCost, verify_seconds
from clover.drafts import DraftModel
from clover.engine import Request
from clover.target import TargetModel
from clover.tree import TreeShape, parse_tree, static_spec
from clover.tune.ranks import WIDTH
from clover.tune.watch import Step, watch

SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 21, 26, 33, 49, 65)  # of probe trees, root included
FEW_SIZES = (9, 33)  # measured at a second context too
_EVERY_DEPTH = 6  # up to which there is a chain of each
_WARM_UP = 1  # first steps of each tree that do not count
_SHORTEST_RUN = 64  # new tokens


@dataclass(frozen=True)
class DraftCost:
    """Seconds that drafting `tree` takes per step, what the draft takes in before it included."""

    tree: str
    seconds: float


@dataclass(frozen=True)
class TreeCost:
    """Seconds per step that one probe tree took, the medians of `steps` steps.

    Args:
        nodes: root included; 1 for plain steps.
        context: tokens of the longest row, the median of all trees.
        other: the step without drafting and the target's pass.
    """

    tree: str
    nodes: int
    context: int
    steps: int
    draft: float
    verify: float
    other: float


@dataclass(frozen=True)
class StepCosts:
    """What was measured at one batch size: plain steps and all probe trees, at one context or two."""

    batch_size: int
    trees: tuple[TreeCost, ...]

    @property
    def context(self) -> int:
        """The context at which all trees were measured."""
        return self.trees[0].context

    @property
    def verify(self) -> tuple[VerifyCost, ...]:
        """Of the target's pass; the median of trees of one size at one context."""
        found: dict[tuple[int, int], list[float]] = {}
        for tree in self.trees:
            found.setdefault((tree.nodes, tree.context), []).append(tree.verify)
        return tuple(
            VerifyCost(self.batch_size, *at, median(seconds)) for at, seconds in sorted(found.items())
        )

    @property
    def draft(self) -> tuple[DraftCost, ...]:
        """Of drafting each probe tree."""
        found: dict[str, list[float]] = {}
        for tree in self.trees:
            if tree.tree != PLAIN:
                found.setdefault(tree.tree, []).append(tree.draft)
        return tuple(DraftCost(tree, median(seconds)) for tree, seconds in found.items())

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"batch_size": self.batch_size, "trees": [asdict(tree) for tree in self.trees]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> StepCosts:
        """What `to_json` wrote."""
        return cls(values["batch_size"], tuple(TreeCost(**tree) for tree in values["trees"]))


class CostModel:
    """Foretells the seconds of a step with any static tree.

    Drafting is taken to cost so much per step, per depth below the first, and per node that is expanded there: the
    non-negative least squares over the probe trees. The target's pass is read between the measured sizes.
    """

    def __init__(self, costs: StepCosts):
        self.costs = costs
        drafted = [tree for tree in costs.trees if tree.tree != PLAIN]
        self._other = median(tree.other for tree in drafted)
        features = [_features(_static(cost.tree)) for cost in costs.draft]
        self._draft = least_squares(features, [cost.seconds for cost in costs.draft])

    def plain_step(self) -> float:
        """Seconds of a plain step."""
        plain = next(tree for tree in self.costs.trees if tree.tree == PLAIN)
        return plain.verify + plain.other

    def draft(self, shape: TreeShape) -> float:
        """Seconds of drafting."""
        return sum(map(float.__mul__, self._draft, _features(shape)))

    def step(self, shape: TreeShape) -> float:
        """Seconds of a whole step."""
        nodes = len(shape.parents)
        passed = verify_seconds(self.costs.verify, self.costs.batch_size, nodes, self.costs.context)
        return self.draft(shape) + passed + self._other

    def by_nodes(self, nodes: int) -> float:
        """Seconds of a step with a chain of so many nodes, root included; 1 is a plain step."""
        return self.step(TreeShape.chain(nodes - 1)) if nodes > 1 else self.plain_step()


def least_squares(features: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The weights, none below 0, with the least squared error; the best of all choices of weights that are 0.

    >>> [round(weight, 6) for weight in least_squares([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [5.0, 4.0, 3.0])]
    [4.0, 0.0]
    """
    table = torch.tensor(features, dtype=torch.float64)
    wanted = torch.tensor(values, dtype=torch.float64)
    found, least = [0.0] * table.shape[1], math.inf
    for used in itertools.product((False, True), repeat=table.shape[1]):
        columns = [place for place, one in enumerate(used) if one]
        part = (
            torch.linalg.lstsq(table[:, columns], wanted, driver="gelsd").solution if columns else wanted[:0]
        )
        error = float(((table[:, columns] @ part - wanted) ** 2).sum())
        if bool((part >= 0).all()) and error < least:
            found, least = [0.0] * table.shape[1], error
            for place, weight in zip(columns, part.tolist(), strict=True):
                found[place] = weight
    return found


def probe_trees(
    best: Callable[[int], TreeShape | None], max_depth: int, vocab_size: int, sizes: Sequence[int] = SIZES
) -> list[str]:
    """Trees whose costs tell those of all others: of many sizes, and chains of many depths.

    Args:
        best: the tree of so many draft tokens that a draft would use; None if none is known.
        sizes: root included.
    """
    usual = _usual_paths(max_depth, min(vocab_size, max(sizes)))
    depths = {*range(1, min(max_depth, _EVERY_DEPTH) + 1), *range(_EVERY_DEPTH, max_depth, 2), max_depth}
    shapes = [TreeShape.chain(depth) for depth in sorted(depths)]
    for size in sizes:
        shape = best(size - 1)
        if shape is None and size - 1 <= len(usual):
            shape = TreeShape.from_paths(usual[: size - 1])
        shapes += [] if shape is None else [shape]
    return [static_spec(shape) for shape in dict.fromkeys(shapes)]


def measure_costs(
    target: TargetModel,
    draft: DraftModel,
    trees: Sequence[str],
    tokens: Sequence[Sequence[int]],
    repeats: int,
    enough: Callable[[], bool],
) -> tuple[TreeCost, ...]:
    """Measure plain steps and trees at one batch size and context.

    Args:
        trees: static ones.
        tokens: of each row, as many as the context has; runs begin shorter and end longer by a quarter.
        repeats: steps of each tree that count.
        enough: asked between runs, of which one is done at least; True ends the measuring.
    """
    context = len(tokens[0])
    start = max(context - max(context // 2, _SHORTEST_RUN) // 2, 1)
    new = min(max(context // 2, _SHORTEST_RUN), target.context_length - start - draft.max_depth)
    requests = [Request(tuple(row[:start]), new, eos=()) for row in tokens]
    drafters = [None, *(make_drafter(draft, parse_tree(tree)) for tree in trees)]
    found: list[list[Step]] = [[] for _ in drafters]
    for number in itertools.count():
        for steps, new in zip(found, watch(target, draft, drafters, requests, number, True), strict=True):
            steps += new
        fewest = min(map(len, found))
        if fewest >= repeats + _WARM_UP or (enough() and fewest > _WARM_UP):
            break
    context = round(median(step.outcome.context for steps in found for step in steps))
    return tuple(_summarize(tree, steps, context) for tree, steps in zip([PLAIN, *trees], found, strict=True))


def _summarize(tree: str, steps: Sequence[Step], context: int) -> TreeCost:
    steps = steps[_WARM_UP:]
    # After a plain step the draft has more to take in than it has when it drafts at every step.
    usual = [step for step in steps if not step.outcome.caught_up] or steps
    return TreeCost(
        tree=tree,
        nodes=steps[0].outcome.nodes,
        context=context,
        steps=len(steps),
        draft=median(step.outcome.draft_seconds for step in usual),
        verify=median(step.verify_seconds for step in steps),
        other=median(step.other_seconds for step in steps),
    )


def _features(shape: TreeShape) -> list[float]:
    below = shape.levels[1:]
    return [1.0, float(len(below)), float(sum(len(level.expanded) for level in below))]


def _static(spec: str) -> TreeShape:
    tree = parse_tree(spec)
    assert isinstance(tree, TreeShape), "probe trees are static"
    return tree


def _usual_paths(max_depth: int, width: int) -> list[tuple[int, ...]]:
    """Rank paths of trees as drafts usually need them, the likeliest first; from the front always a tree."""
    ranks = range(width if max_depth == 1 else min(width, WIDTH))
    most = max(ranks) + 1
    paths: list[tuple[int, ...]] = []
    grown: list[tuple[int, ...]] = [()]
    for _ in range(max_depth):
        grown = [(*p, r) for p in grown for r in ranks if math.prod(x + 1 for x in (*p, r)) <= most]
        paths += grown
    return sorted(paths, key=lambda path: (math.prod(rank + 1 for rank in path), len(path), path))
