"""Static trees: the same shape at every step.

Shapes: B batch, N nodes (root included), P frontier nodes, V the draft's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clover.drafting.base import DraftInput
from clover.drafts import DraftModel, DraftSession
from clover.drafts.vocabulary import target_tokens
from clover.errors import UserError
from clover.tree import TokenTree, TreeShape


@dataclass(frozen=True)
class Growth:
    """One level of a static tree as index tensors on the device.

    Attributes:
        choices: how many tokens of a parent's distribution are looked at.
        expanded: Long [parents], the nodes whose children these are, in the order of the draft's output.
        slots: Long [nodes], row of the draft's output that a node is a child in.
        ranks: Long [nodes], which of that row's tokens it is.
        frontier: Long [P], nodes of this level (counted within it) that get children; None at the last level.
        frontier_slots: Long [1, P], their rows of the draft's output.
    """

    choices: int
    expanded: Tensor
    slots: Tensor
    ranks: Tensor
    frontier: Tensor | None
    frontier_slots: Tensor | None

    @property
    def single(self) -> bool:
        """Whether the level is one node, the best child of the only parent: part of a chain, with less to look up."""
        return self.choices == len(self.slots) == len(self.expanded) == 1

    def pick(self, scores: Tensor) -> Tensor:
        """The level's nodes, Long [B, nodes], by scores [B, parents, V] of their parents' children."""
        if self.single:
            return scores.argmax(-1)
        return scores.topk(self.choices).indices[:, self.slots, self.ranks]

    def advance(self, session: DraftSession, nodes: Tensor) -> Tensor | None:
        """Run the draft over what gets children of this level's tokens, Long [B, nodes]; its logits [B, P, V]."""
        if self.frontier is None or self.frontier_slots is None:
            return None
        expanded = nodes if self.single else nodes[:, self.frontier]
        return session.advance(self.frontier_slots.expand(nodes.shape[0], -1), expanded)


class StaticDrafter:
    """Fills a fixed tree shape: node i is the `ranks[i]`-th best child of its parent (Clover-2, section 3).

    The best are the most probable ones in greedy rows; in sampled rows those with the highest Gumbel scores, by the
    numbers with which the target will choose (`Sampler.gumbel_scores`).

    One call of the draft per depth; only nodes that have children are expanded.
    """

    def __init__(self, draft: DraftModel, shape: TreeShape):
        if shape.max_depth > draft.max_depth:
            raise UserError(
                f"the tree is {shape.max_depth} deep but the draft goes down {draft.max_depth} depths at most; "
                "give a shallower tree"
            )
        known = draft.target.vocab_size if draft.d2t is None else len(draft.d2t)
        widest = max((level.max_rank + 1 for level in shape.levels), default=0)
        if widest > known:
            raise UserError(
                f"the tree looks at the {widest} best tokens of a node but the draft proposes from {known}; "
                "give a narrower tree or a draft with a larger vocabulary"
            )
        self.shape, self.max_depth, self.max_nodes = shape, shape.max_depth, len(shape.parents)
        self.levels = growth(shape, draft.target.device)
        self.d2t = draft.d2t

    def grow(self, given: DraftInput) -> TokenTree:
        return TokenTree.from_shape(self.shape, self.fill(given))

    def fill(self, given: DraftInput) -> Tensor:
        """The tokens of the tree, Long [B, N]."""
        session, logits = given.catch_up()
        tokens, output = [given.root.unsqueeze(1)], logits.unsqueeze(1)
        for depth, level in enumerate(self.levels):
            assert output is not None
            picked = level.pick(given.sampler.gumbel_scores(output, depth, self.d2t))
            tokens.append(target_tokens(self.d2t, picked))
            output = level.advance(session, tokens[-1])
        return torch.cat(tokens, dim=1)


def growth(shape: TreeShape, device: torch.device) -> list[Growth]:
    """Put the levels of a tree on a device."""

    def index(values: list[int] | tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    levels = []
    for level, below in zip(shape.levels, [*shape.levels[1:], None], strict=True):
        frontier = None if below is None else [level.nodes.index(node) for node in below.expanded]
        levels.append(
            Growth(
                choices=level.max_rank + 1,
                expanded=index(level.expanded),
                slots=index(level.slots),
                ranks=index(level.ranks),
                frontier=None if frontier is None else index(frontier),
                frontier_slots=None if frontier is None else index([level.slots[i] for i in frontier])[None],
            )
        )
    return levels
