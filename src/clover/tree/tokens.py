"""The trees of one decoding step, with their tokens.

Shapes: B batch, N nodes (root included), P nodes whose children were drawn, K children at most, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from clover.tree.shape import TreeShape

_ROOT = TreeShape()


@dataclass(frozen=True)
class Draws:
    """How the children of a tree were drawn, for recursive rejection sampling.

    Attributes:
        draft_probs: float64 [B, P, V], the distribution of the first draw of each node with children.
        nodes: Long [B, P], the nodes with children.
        children: Long [B, P, K], the children of these nodes in the order of the draws, padded with -1.
    """

    draft_probs: Tensor
    nodes: Tensor
    children: Tensor


@dataclass(frozen=True)
class TokenTree:
    """The token trees of one decoding step. Rows may differ in shape, but not in the number of nodes.

    Attributes:
        tokens: Long [B, N]; column 0 is the root, the last committed token.
        parents: Long [B, N]; -1 in column 0, elsewhere less than the column. A later -1 marks a padding node, which
            has no children and is never accepted.
        depths: Long [B, N]; 0 for the root and for padding.
        ancestor_mask: Bool [B, N, N], True where the column is an ancestor of the row, or the row itself.
        max_depth: no node is deeper; known without asking the device.
        draws: how the nodes were drawn; None if they are a function of the text alone.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestor_mask: Tensor
    max_depth: int
    draws: Draws | None = None

    @classmethod
    def from_shape(cls, shape: TreeShape, tokens: Tensor) -> TokenTree:
        """Put tokens Long [B, N] on a static tree of N nodes. The other tensors are views that rows and steps share."""
        parents, depths, mask = _shape_tensors(shape, tokens.device)
        parents, depths = parents.expand(len(tokens), -1), depths.expand(len(tokens), -1)
        return cls(tokens, parents, depths, mask.expand(len(tokens), -1, -1), shape.max_depth)

    @classmethod
    def from_parents(cls, tokens: Tensor, parents: Tensor, max_depth: int | None = None) -> TokenTree:
        """Build trees from tokens and parents Long [B, N]; rows may differ in shape.

        No node is deeper than `max_depth`, by default N - 1; a lower limit makes verified paths narrower.

        >>> tree = TokenTree.from_parents(torch.tensor([[7, 8, 9]]), torch.tensor([[-1, 0, 1]]))
        >>> tree.depths
        tensor([[0, 1, 2]])
        """
        rows, nodes = parents.shape
        has_parent = (parents >= 0).float().unsqueeze(2)
        reach = torch.eye(nodes, dtype=torch.float32, device=parents.device).repeat(rows, 1, 1)
        reach = reach.scatter_add(2, parents.clamp(min=0).unsqueeze(2), has_parent)
        # `reach` marks nodes at most one step above; its square at most two steps, and so on up to N - 1.
        for _ in range((nodes - 1).bit_length()):
            reach = (reach @ reach).clamp(max=1)
        mask = reach > 0
        return cls(tokens, parents, mask.sum(2) - 1, mask, nodes - 1 if max_depth is None else max_depth)

    @classmethod
    def root_only(cls, tokens: Tensor) -> TokenTree:
        """Build the tree of plain decoding: Long [B, 1] last committed tokens, no draft."""
        return cls.from_shape(_ROOT, tokens)

    def without(self, nodes: Tensor) -> TokenTree:
        """Turn nodes, Bool [B, N], and all nodes below them into padding, except the root; [B, 1] marks whole rows.

        >>> tree = TokenTree.from_shape(TreeShape.from_paths([[0], [1], [0, 0]]), torch.tensor([[5, 6, 7, 8]]))
        >>> tree.without(torch.tensor([[False, True, False, False]])).parents
        tensor([[-1, -1,  0, -1]])
        """
        below_root = nodes & (self.parents >= 0)
        gone = (self.ancestor_mask & below_root.unsqueeze(1)).any(2)
        alone = torch.eye(self.tokens.shape[1], dtype=torch.bool, device=nodes.device)
        return dataclasses.replace(
            self,
            parents=self.parents.masked_fill(gone, -1),
            depths=self.depths.masked_fill(gone, 0),
            ancestor_mask=torch.where(gone.unsqueeze(2), alone, self.ancestor_mask),
        )

    def alone(self, rows: Tensor) -> TokenTree:
        """Keep only the roots in some rows, Bool [B]: all other nodes become padding with the root's token.

        >>> tree = TokenTree.from_shape(TreeShape.chain(2), torch.tensor([[5, 6, 7]]))
        >>> tree.alone(torch.tensor([True])).tokens
        tensor([[5, 5, 5]])
        """
        tokens = torch.where(rows.unsqueeze(1), self.tokens[:, :1], self.tokens)
        return dataclasses.replace(self.without(rows.unsqueeze(1)), tokens=tokens)


@lru_cache(maxsize=64)
def _shape_tensors(shape: TreeShape, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    # Cached tensors are made outside inference mode, because callers outside it use them, too.
    with torch.inference_mode(False):
        parents, depths = torch.tensor([shape.parents, shape.depths], device=device)
        return parents, depths, shape.ancestor_mask().to(device)
