"""Static trees: the same shape at every step.

Shapes: B batch, N nodes (root included), P frontier nodes, K choices per node, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clover.drafts import DraftModel, DraftSession
from clover.errors import UserError
from clover.sampling import Sampler
from clover.tree import TokenTree, TreeShape


@dataclass(frozen=True)
class _Growth:
    """One level of a static tree as index tensors on the device."""

    choices: int  # how many of the best tokens of a parent's distribution are looked at
    slots: Tensor  # Long [nodes]: row of the draft's output a node is a child in
    ranks: Tensor  # Long [nodes]: which of that row's best tokens it is
    frontier: (
        Tensor | None
    )  # Long [P]: nodes of this level (counted within it) that get children; None at the last
    frontier_slots: Tensor | None  # Long [1, P]: their rows of the draft's output


class StaticDrafter:
    """Fills a fixed tree shape: node i is the `ranks[i]`-th most probable child of its parent (Clover-2, section 3).

    One call of the draft per depth; only nodes that have children are expanded.
    """

    def __init__(self, draft: DraftModel, shape: TreeShape):
        if shape.max_depth > draft.max_depth:
            raise UserError(
                f"the tree is {shape.max_depth} deep but the draft was trained for {draft.max_depth} depths; "
                "give a shallower tree or train the draft with more heads"
            )
        self.shape, self.max_depth, self.max_nodes = shape, shape.max_depth, len(shape.parents)
        self._growth = _growth(shape, draft.target.device)

    def grow(self, session: DraftSession, logits: Tensor, root: Tensor, sampler: Sampler) -> TokenTree:
        tokens, logits = [root.unsqueeze(1)], logits.unsqueeze(1)
        for level in self._growth:
            best = logits.topk(level.choices).indices
            nodes = best[:, level.slots, level.ranks]
            tokens.append(nodes)
            if level.frontier is not None and level.frontier_slots is not None:
                slots = level.frontier_slots.expand(root.shape[0], -1)
                logits = session.advance(slots, nodes[:, level.frontier])
        return TokenTree.from_shape(self.shape, torch.cat(tokens, dim=1))


def _growth(shape: TreeShape, device: torch.device) -> list[_Growth]:
    def index(values: list[int] | tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    growth = []
    for level, below in zip(shape.levels, [*shape.levels[1:], None], strict=True):
        frontier = None if below is None else [level.nodes.index(node) for node in below.expanded]
        growth.append(
            _Growth(
                choices=level.max_rank + 1,
                slots=index(level.slots),
                ranks=index(level.ranks),
                frontier=None if frontier is None else index(frontier),
                frontier_slots=None if frontier is None else index([level.slots[i] for i in frontier])[None],
            )
        )
    return growth
