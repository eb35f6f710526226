"""Chains that are drafted on while it pays: each ends where too few of the rows are likely to accept more.

A depth of the draft costs the same whether its token is accepted or not. Where the text is easy a long chain is worth
it, where it is hard the first tokens are already wrong; no fixed length suits both. The threshold is that of
transformers' assisted generation (`assistant_confidence_threshold`) and of SpecDec++ (2405.19715), here on the
probability of the whole path.

Shapes: B batch, V the draft's vocabulary.
"""

from __future__ import annotations

import torch

from clover.drafting.base import DraftInput
from clover.drafting.top_k import log_probabilities
from clover.drafts import DraftModel
from clover.drafts.vocabulary import target_tokens
from clover.tree import ConfidentChain, TokenTree, TreeShape


class ConfidentDrafter:
    """Drafts one token after another until their joint probability, as the mean of the rows, is below the least.

    Probabilities are the draft's own. In sampled rows they are taken at the row's temperature, after the numbers by
    which the target will choose are added to the logits (`Sampler.gumbel_scores`). All sequences of a batch get as
    many tokens. The host has to know when to end, so it waits for the device once per depth.
    """

    def __init__(self, draft: DraftModel, tree: ConfidentChain):
        self.least, self.d2t = tree.least, draft.d2t
        self.max_depth = min(draft.max_depth, tree.depth)
        self.max_nodes = 1 + self.max_depth
        self._shapes = [TreeShape.chain(depth) for depth in range(1, self.max_depth + 1)]

    def grow(self, given: DraftInput) -> TokenTree:
        (session, logits), root, sampler = given.catch_up(), given.root, given.sampler
        tokens, output = [root.unsqueeze(1)], logits.unsqueeze(1)
        slots, joint = torch.zeros_like(tokens[0]), torch.ones_like(root, dtype=torch.float64)
        for shape in self._shapes:
            scores = sampler.gumbel_scores(output, shape.max_depth - 1, self.d2t)[:, 0]
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            found = scores.max(-1, keepdim=True)
            tokens.append(target_tokens(self.d2t, found.indices))
            if shape.max_depth == self.max_depth:
                break
            joint = joint * log_probabilities(found.values, scores)[:, 0].exp()
            if float(joint.mean()) < self.least:
                break
            output = session.advance(slots, tokens[-1])
        return TokenTree.from_shape(self._shapes[len(tokens) - 2], torch.cat(tokens, dim=1))
