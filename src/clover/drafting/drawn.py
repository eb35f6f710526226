"""Trees whose children are drawn from the draft without replacement, verified by recursive rejection sampling.

Shapes: B batch, N nodes (root included), P nodes with children, K children at most, V vocabulary, V' the draft's.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.drafting.base import DraftInput
from clover.drafting.static import Level, StaticDrafter, StaticTree
from clover.drafting.tree import Tree, parse_tree
from clover.drafts import DraftModel
from clover.drafts.vocabulary import over_all_tokens
from clover.errors import UserError
from clover.sampling import Sampler
from clover.tree import Draws, TokenTree, TreeShape


@dataclass(frozen=True)
class DrawnTree(Tree):
    """A static shape whose children are drawn from the draft without replacement (EAGLE, arXiv 2401.15077).

    A child's rank is the number of its draw. Draws are verified in their order, so none may be left out.
    """

    shape: TreeShape

    word = "drawn"
    example = "drawn:clover2"
    exact = False
    tunable = False

    def __post_init__(self) -> None:
        if self.shape.budget < 1:
            raise UserError("a drawn tree has no nodes; give one with at least one child")
        children = set(zip(self.shape.parents, self.shape.ranks, strict=True))
        if any(rank and (parent, rank - 1) not in children for parent, rank in children):
            raise UserError("in a drawn tree the children of a node must have the ranks 0, 1, 2 …, no gaps")

    @classmethod
    def parse(cls, text: str) -> "DrawnTree | None":
        word, _, rest = text.partition(":")
        if word != cls.word:
            return None
        tree = None if rest.partition(":")[0] == cls.word else parse_tree(rest)
        if not isinstance(tree, StaticTree):
            raise UserError("only a static tree can be drawn, such as drawn:clover2 or drawn:chain:5")
        return cls(tree.shape)

    @property
    def name(self) -> str:
        return f"{self.word}:{StaticTree(self.shape).name}"

    def drafter(self, draft: DraftModel) -> "DrawnDrafter":
        return DrawnDrafter(draft, self)


class DrawnDrafter(StaticDrafter):
    """Fills a static shape with draws: a child's rank is the number of its draw from its parent's distribution.

    The draft is sampled at the sequence's own temperature (EAGLE, 2401.15077; Clover-2 at temperatures above 0). Greedy
    sequences choose the most probable tokens. If a distribution has too few tokens, the remaining children are padding.
    """

    def __init__(self, draft: DraftModel, tree: DrawnTree):
        super().__init__(draft, tree.shape)
        self.max_expanded = 0
        device, self._vocab_size = draft.target.device, draft.target.vocab_size
        expanded = sorted(set(tree.shape.parents[1:]))
        children = [[i for i, parent in enumerate(tree.shape.parents) if parent == node] for node in expanded]
        widest = max(map(len, children))
        padded = [[*nodes, *[-1] * (widest - len(nodes))] for nodes in children]
        self._expanded = torch.tensor([expanded], device=device)  # Long [1, P]
        self._children = torch.tensor([padded], device=device)  # Long [1, P, K]

    def grow(self, batch: DraftInput) -> TokenTree:
        sampler = batch.sampler
        if not (isinstance(sampler, Sampler) and sampler.any_sampled):
            return super().grow(batch)
        missing, probs = [torch.zeros_like(batch.root, dtype=torch.bool)], list[Tensor]()

        def draw(depth: int, level: Level, output: Tensor) -> Tensor:
            probs.append(sampler.draft_probs(output))
            drawn = sampler.draw(probs[-1], level.expanded, level.choices, self.d2t)
            missing.append((probs[-1].gather(2, drawn) == 0)[:, level.slots, level.ranks])
            return drawn[:, level.slots, level.ranks]

        tree = TokenTree.from_shape(self.shape, self.walk(batch, draw, force=False)).without(
            torch.cat(missing, dim=1)
        )
        return dataclasses.replace(tree, draws=self._draws(torch.cat(probs, dim=1)))

    def _draws(self, draft_probs: Tensor) -> Draws:
        """Return the draws for verification, from probabilities float64 [B, P, V']."""
        rows = len(draft_probs)
        # Verification compares these with the target's probabilities, token by token.
        whole = over_all_tokens(draft_probs, self.d2t, self._vocab_size, 0.0)
        return Draws(whole, self._expanded.expand(rows, -1), self._children.expand(rows, -1, -1))
