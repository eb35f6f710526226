"""Static trees: each node's parent and its rank among the candidates, the same at every step.

Shapes: N nodes (root included).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clover.errors import UserError

MOST = 9999  # the most nodes, depths or children of a tree that a user names


@dataclass(frozen=True)
class TreeShape:
    """A static token tree; made by `from_paths` or `chain`.

    Attributes:
        parents: parent of each node; ``parents[0] == -1``, ``parents[i] < i``, nodes sorted by depth.
        ranks: node i is the ``ranks[i]``-th best child of its parent, counted from 0; ``ranks[0] == 0``.

    >>> shape = TreeShape.from_paths([[0], [1], [0, 0]])
    >>> shape.parents, shape.ranks, shape.depths
    ((-1, 0, 0, 1), (0, 0, 1, 0), (0, 1, 1, 2))
    """

    parents: tuple[int, ...] = (-1,)
    ranks: tuple[int, ...] = (0,)

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> TreeShape:
        """Build the tree whose nodes have these paths of child ranks, in any order, without the root.

        ``[0, 2]`` is the third best child of the best child of the root. UserError if there is no path, or for an empty
        path, a negative rank, a repeated path, or a path without its parent.
        """
        ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
        if not ordered or not ordered[0]:
            raise UserError("a tree needs at least one path, and no empty one: the root is always there")
        index: dict[tuple[int, ...], int] = {(): 0}
        for path in ordered:
            if path in index:
                raise UserError(f"the tree has path {list(path)} twice; leave one out")
            if path[:-1] not in index:
                raise UserError(f"the tree has path {list(path)} without {list(path[:-1])}, its parent")
            if path[-1] < 0:
                raise UserError(f"the tree has path {list(path)}; the ranks of a tree must not be negative")
            index[path] = len(index)
        parents, ranks = zip(*((index[path[:-1]], path[-1]) for path in ordered), strict=True)
        return cls((-1, *parents), (0, *ranks))

    @classmethod
    def chain(cls, length: int) -> TreeShape:
        """Build a chain of `length` draft tokens, from 1 to 9999, one per depth; UserError for other lengths.

        >>> TreeShape.chain(3).parents
        (-1, 0, 1, 2)
        """
        if not 1 <= length <= MOST:
            raise UserError(f"a chain has from 1 to {MOST} draft tokens, not {length}")
        return cls(tuple(range(-1, length)), (0,) * (length + 1))

    def cut(self, max_depth: int) -> TreeShape:
        """Return the tree without nodes deeper than `max_depth`.

        >>> TreeShape.chain(5).cut(2) == TreeShape.chain(2)
        True
        """
        kept = sum(depth <= max_depth for depth in self.depths)
        return TreeShape(self.parents[:kept], self.ranks[:kept])

    def narrow(self, choices: int) -> TreeShape:
        """Return the tree without children that are not among the best `choices`, and without nodes below those.

        >>> TreeShape.from_paths([[0], [1], [2], [0, 0], [2, 0]]).narrow(2).paths
        ((), (0,), (1,), (0, 0))
        """
        return TreeShape.from_paths(path for path in self.paths[1:] if max(path) < choices)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that lead to each node; the root's path is empty.

        >>> TreeShape.from_paths([[0], [1], [1, 0]]).paths
        ((), (0,), (1,), (1, 0))
        """
        paths: list[tuple[int, ...]] = [()]
        for parent, rank in zip(self.parents[1:], self.ranks[1:], strict=True):
            paths.append((*paths[parent], rank))
        return tuple(paths)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Return the depth of each node; the root's is 0."""
        return tuple(map(len, self.paths))

    @property
    def max_depth(self) -> int:
        """Return the depth of the deepest node: the most draft tokens that one step can accept."""
        return self.depths[-1]

    @property
    def budget(self) -> int:
        """Return how many draft tokens are verified per step, root excluded."""
        return len(self.parents) - 1

    def ancestor_mask(self) -> Tensor:
        """Return Bool [N, N], True where the column is an ancestor of the row, or the row itself.

        >>> TreeShape.from_paths([[0], [1], [0, 0]]).ancestor_mask().int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 1, 0, 1]], dtype=torch.int32)
        """
        mask = torch.eye(len(self.parents), dtype=torch.bool, device="cpu")
        for node, parent in enumerate(self.parents[1:], start=1):
            mask[node] |= mask[parent]
        return mask
