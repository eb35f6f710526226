"""Which nodes a static tree should have: those that are most often on the accepted path.

A wide tree is run once over some prompts, and each node counted. A child is never accepted more often than its parent,
so the n most frequent nodes always form a tree; it is the best one of n nodes for that text (Medusa, 2401.10774, 3.3,
chooses by the accuracies of the heads instead).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from clover.engine import Engine, Request
from clover.tree import TreeShape

_WIDEST_RANK = 8


class _CountingEngine(Engine):
    """Counts the nodes of accepted paths."""

    def __init__(self, engine: Engine, shape: TreeShape):
        super().__init__(engine.target, engine.draft, shape)
        self.accepted: Counter[int] = Counter()

    def _keep(self, batch: Any, output: Any, verified: Any, counts: list[int], path: list[list[int]]) -> None:
        for nodes, count in zip(path, counts, strict=True):
            self.accepted.update(nodes[:count])
        super()._keep(batch, output, verified, counts, path)


def likely_paths(engine: Engine, requests: Sequence[Request], batch_size: int = 8) -> list[tuple[int, ...]]:
    """Rank paths, most often accepted first; any number of them from the front is a tree (`TreeShape.from_paths`).

    Looked at are the paths whose ranks, counted from one, multiply to no more than 8.
    """
    draft = engine.draft
    assert draft is not None, "plain decoding has no tree"
    ranks = range(_WIDEST_RANK)
    paths = [p for depth in range(1, draft.max_depth + 1) for p in product(ranks, repeat=depth)]
    shape = TreeShape.from_paths([p for p in paths if prod(rank + 1 for rank in p) <= _WIDEST_RANK])
    counting = _CountingEngine(engine, shape)
    for at in range(0, len(requests), batch_size):
        for _ in counting.run(requests[at : at + batch_size]):
            pass
    found: list[tuple[int, ...]] = [()]
    for node in range(1, len(shape.parents)):
        found.append((*found[shape.parents[node]], shape.ranks[node]))
    order = sorted(
        range(1, len(found)), key=lambda node: (-counting.accepted[node], len(found[node]), found[node])
    )
    return [found[node] for node in order]
