"""Token trees: which draft tokens the target model verifies together in one forward pass.

A `TreeShape` is a plan that is the same at every step (who is whose parent, which candidate sits where); a
`TokenTree` is one step's tree with its tokens, for a batch. Node 0 is the root, the last committed token;
every other node comes after its parent. Shapes: B batch, N nodes (root included).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

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

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; the root's is 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

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


_ROOT = TreeShape((-1,), (0,))


@dataclass(frozen=True)
class TokenTree:
    """The token trees of one decoding step. Rows may differ in shape, not in the number of nodes.

    Attributes:
        tokens: Long [B, N]; column 0 is the root, the last committed token.
        parents: Long [B, N]; column 0 is -1, elsewhere less than the column. Another -1 marks a padding node,
            which has no children and is never accepted: it fills up a row that has fewer nodes than others.
        depths: Long [B, N]; 0 for the root and for padding.
        ancestor_mask: Bool [B, N, N], True where the column is an ancestor of the row, or the row itself.
        max_depth: no node is deeper; known without asking the device.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestor_mask: Tensor
    max_depth: int

    @classmethod
    def from_shape(cls, shape: TreeShape, tokens: Tensor) -> TokenTree:
        """Put tokens on a static tree. The other tensors are views, shared by all rows and steps.

        Args:
            shape: the tree, N nodes.
            tokens: Long [B, N] in the shape's order of nodes.
        """
        parents, depths, mask = _shape_tensors(shape, tokens.device)
        parents, depths = parents.expand(len(tokens), -1), depths.expand(len(tokens), -1)
        return cls(tokens, parents, depths, mask.expand(len(tokens), -1, -1), shape.max_depth)

    @classmethod
    def from_parents(cls, tokens: Tensor, parents: Tensor, max_depth: int | None = None) -> TokenTree:
        """Build trees that may differ from row to row, as dynamic drafting grows them.

        Args:
            tokens: Long [B, N].
            parents: Long [B, N], see `TokenTree.parents`.
            max_depth: a depth that no node exceeds; N - 1 if not given. Lower makes verified paths narrower.

        >>> tree = TokenTree.from_parents(torch.tensor([[7, 8, 9]]), torch.tensor([[-1, 0, 1]]))
        >>> tree.depths
        tensor([[0, 1, 2]])
        """
        rows, nodes = parents.shape
        has_parent = (parents >= 0).float().unsqueeze(2)
        reach = torch.eye(nodes, device=parents.device).repeat(rows, 1, 1)
        reach = reach.scatter_add(2, parents.clamp(min=0).unsqueeze(2), has_parent)
        for _ in range((nodes - 1).bit_length()):
            reach = (reach @ reach).clamp(max=1)
        mask = reach > 0
        return cls(tokens, parents, mask.sum(2) - 1, mask, nodes - 1 if max_depth is None else max_depth)

    @classmethod
    def root_only(cls, tokens: Tensor) -> TokenTree:
        """Build the tree of plain decoding: Long [B, 1] last committed tokens, no draft."""
        return cls.from_shape(_ROOT, tokens)


@lru_cache(maxsize=64)
def _shape_tensors(shape: TreeShape, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    # Made outside inference mode: what is cached here must also serve a caller that is not in it.
    with torch.inference_mode(False):
        parents, depths = torch.tensor([shape.parents, shape.depths], device=device)
        return parents, depths, shape.ancestor_mask().to(device)


# The static tree of Clover-2 (arXiv 2408.00264): 4, 8, 8, 3 and 2 nodes at depths 1 to 5.
_CLOVER2_PATHS = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
CLOVER2_TREE = TreeShape.from_paths([int(rank) for rank in path] for path in _CLOVER2_PATHS.split())


def parse_tree(text: str) -> TreeShape:
    """Read a tree from a command line: "clover2", "chain:5", or the path of a JSON list of rank paths.

    Raises:
        UserError: it is none of these, or the file does not hold a tree.

    >>> parse_tree("chain:5").budget, parse_tree("clover2") is CLOVER2_TREE
    (5, True)
    """
    if text == "clover2":
        return CLOVER2_TREE
    if text.startswith("chain:"):
        length = text.removeprefix("chain:")
        if not (length.isascii() and length.isdigit() and len(length) < 5):
            raise UserError(f"tree {text!r}: a chain needs its length, 1 to 9999, as in chain:5")
        return TreeShape.chain(int(length))
    return TreeShape.from_paths(_read_paths(Path(text)))


def _read_paths(file: Path) -> list[list[int]]:
    wanted = "clover2, chain:5, or a JSON file with a list of rank paths such as [[0], [1], [0, 0]]"
    try:
        paths = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"tree {str(file)!r} cannot be read ({error}); give {wanted}") from error
    if not isinstance(paths, list) or not all(_is_rank_path(path) for path in paths):
        raise UserError(f"tree {str(file)!r} is not a list of rank paths; give {wanted}")
    return paths


def _is_rank_path(path: object) -> bool:
    return isinstance(path, list) and all(type(rank) is int and rank >= 0 for rank in path)
