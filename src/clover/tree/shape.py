"""Static trees: who is whose parent, and which candidate sits where, the same at every step.

Shapes: N nodes (root included).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clover.errors import UserError


@dataclass(frozen=True)
class Level:
    """The nodes of one depth d >= 1, and what a draft has to do to fill them.

    Attributes:
        nodes: node indices of this depth, ascending.
        expanded: the distinct parents, nodes of depth d - 1: the rows of the draft's output that are read.
        slots: per node, the index of its parent within `expanded`.
        ranks: per node, which of its parent's candidates it is, 0 the most probable.
        max_rank: the largest of `ranks`.
    """

    nodes: tuple[int, ...]
    expanded: tuple[int, ...]
    slots: tuple[int, ...]
    ranks: tuple[int, ...]
    max_rank: int


@dataclass(frozen=True)
class TreeShape:
    """A static token tree: the same candidates' ranks at every step.

    Attributes:
        parents: parent of each node; ``parents[0] == -1``, ``parents[i] < i``, nodes sorted by depth.
        ranks: node i is the ``ranks[i]``-th best child that its parent's draft distribution offers, counted
            from 0; ``ranks[0] == 0``.

    Raises:
        UserError: the two do not describe such a tree.

    >>> shape = TreeShape.from_paths([[0], [1], [0, 0]])
    >>> shape.parents, shape.ranks, shape.depths
    ((-1, 0, 0, 1), (0, 0, 1, 0), (0, 1, 1, 2))
    >>> shape.levels[1]
    Level(nodes=(3,), expanded=(1,), slots=(0,), ranks=(0,), max_rank=0)
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.parents[:1] != (-1,) or self.ranks[:1] != (0,) or len(self.parents) != len(self.ranks):
            raise UserError("a tree needs a root: parents start with -1, ranks with 0, one of each per node")
        if any(not 0 <= parent < node for node, parent in enumerate(self.parents) if node):
            raise UserError("every node but the root needs a parent that comes before it")
        if any(rank < 0 for rank in self.ranks) or list(self.depths) != sorted(self.depths):
            raise UserError("the ranks of a tree must not be negative, and its nodes must be sorted by depth")
        if len(set(zip(self.parents, self.ranks, strict=True))) < len(self.parents):
            raise UserError("two children of one node have the same rank; give every child its own")

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> TreeShape:
        """Build the tree whose nodes are these paths of child ranks, in any order, the root left out.

        Args:
            paths: ``[0, 2]`` is the third best child of the best child of the root.

        Raises:
            UserError: no path, an empty one, a negative rank, a path given twice, or one without its parent.
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
            index[path] = len(index)
        parents, ranks = zip(*((index[path[:-1]], path[-1]) for path in ordered), strict=True)
        return cls((-1, *parents), (0, *ranks))

    @classmethod
    def chain(cls, length: int) -> TreeShape:
        """Build a chain of `length` draft tokens, one per depth.

        Raises:
            UserError: length < 1.

        >>> TreeShape.chain(3).parents
        (-1, 0, 1, 2)
        """
        if length < 1:
            raise UserError(f"a chain needs at least one draft token, got {length}")
        return cls(tuple(range(-1, length)), (0,) * (length + 1))

    def cut(self, max_depth: int) -> TreeShape:
        """Return the tree without the nodes that are deeper.

        >>> TreeShape.chain(5).cut(2) == TreeShape.chain(2)
        True
        """
        kept = sum(depth <= max_depth for depth in self.depths)
        return TreeShape(self.parents[:kept], self.ranks[:kept])

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; the root's is 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that lead to each node; the root's path is empty.

        >>> TreeShape.from_paths([[0], [1], [1, 0]]).paths
        ((), (0,), (1,), (1, 0))
        """
        paths: list[tuple[int, ...]] = [()]
        for parent, rank in zip(self.parents[1:], self.ranks[1:], strict=True):
            paths.append((*paths[parent], rank))
        return tuple(paths)

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node: the most draft tokens that one step can accept."""
        return self.depths[-1]

    @property
    def budget(self) -> int:
        """Draft tokens verified per step, root excluded."""
        return len(self.parents) - 1

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The depths 1, 2, … in order."""
        return tuple(self._level(depth) for depth in range(1, self.max_depth + 1))

    def _level(self, depth: int) -> Level:
        nodes = tuple(node for node, its_depth in enumerate(self.depths) if its_depth == depth)
        expanded = tuple(sorted({self.parents[node] for node in nodes}))
        slots = tuple(expanded.index(self.parents[node]) for node in nodes)
        ranks = tuple(self.ranks[node] for node in nodes)
        return Level(nodes, expanded, slots, ranks, max(ranks))

    def ancestor_mask(self) -> Tensor:
        """Bool [N, N]: True where the column is an ancestor of the row, or the row itself.

        >>> TreeShape.from_paths([[0], [1], [0, 0]]).ancestor_mask().int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 1, 0, 1]], dtype=torch.int32)
        """
        mask = torch.eye(len(self.parents), dtype=torch.bool)
        for node, parent in itertools.islice(enumerate(self.parents), 1, None):
            mask[node] |= mask[parent]
        return mask
