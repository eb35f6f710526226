"""Chains that end when the draft is no longer confident.

Shapes: B batch, V the draft's vocabulary.
"""

from typing import Annotated

import torch
from pydantic import Field

from clover.drafting.base import Drafter, DraftInput
from clover.drafting.guide import Guide
from clover.drafting.top_k import likeliest
from clover.drafting.tree import Tree
from clover.drafts import DraftModel
from clover.drafts.vocabulary import target_tokens
from clover.tree import TokenTree, TreeShape
from clover.tree.shape import MOST
from clover.validation import checked


@checked
class ConfidentChain(Tree):
    """A chain that ends when the draft is no longer confident that the whole chain is accepted.

    Attributes:
        depth: the most draft tokens per step; a draft with fewer depths proposes fewer.
        least: drafting stops when the joint probability of a step's tokens, averaged over sequences, is below this.
    """

    depth: Annotated[int, Field(ge=1, le=MOST)]
    least: Annotated[float, Field(gt=0, lt=1)]

    word = "chain"
    example = "chain:10:0.1"
    fixed_size = False

    @classmethod
    def parse(cls, text: str) -> Tree | None:
        return super().parse(text) if text.count(":") > 1 else None  # chain:K is a static tree

    def drafter(self, draft: DraftModel) -> "ConfidentDrafter":
        return ConfidentDrafter(draft, self)


class ConfidentDrafter(Drafter):
    """Drafts one token after another until their joint probability, averaged over sequences, is below `least`.

    The threshold is similar to transformers' `assistant_confidence_threshold` and SpecDec++ (2405.19715), but applies
    to the probability of the whole path; in sampled sequences after Gumbel coupling (`Sampler.gumbel_scores`). All
    sequences get equally many tokens. The host waits for the device once per depth.
    """

    def __init__(self, draft: DraftModel, tree: ConfidentChain):
        self.least, self.d2t = tree.least, draft.session_tokens
        self.max_depth = min(draft.max_depth, tree.depth)
        self.max_nodes = 1 + self.max_depth
        self._shapes = [TreeShape.chain(depth) for depth in range(1, self.max_depth + 1)]

    def grow(self, batch: DraftInput) -> TokenTree:
        (session, output), tokens = batch.commit_draft(), [batch.root]
        slots, joint = torch.zeros_like(tokens[0]), torch.ones_like(batch.root[:, 0], dtype=torch.float64)
        guide = Guide.of(batch, self.d2t)
        for depth in range(1, self.max_depth + 1):
            output = output if guide is None else guide.restrict(output)
            found, indices = likeliest(batch.sampler.gumbel_scores(output, depth - 1, self.d2t)[:, 0], 1)
            tokens.append(target_tokens(self.d2t, indices))
            if guide is not None:
                guide.follow(slots.tolist(), tokens[-1])
            joint = joint * found[:, 0].exp()
            if depth == self.max_depth or float(joint.mean()) < self.least:
                break
            output = session.advance(slots, tokens[-1])
        return TokenTree.from_shape(self._shapes[len(tokens) - 2], torch.cat(tokens, dim=1))
