"""EAGLE-2's dynamic tree (arXiv 2406.16858, section 4): expand a beam, then re-rank all candidates.

Shapes: B batch, K beam and children per node, C candidates, V the draft's vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clover.drafting.base import DraftInput
from clover.drafting.top_k import best, compact, likeliest
from clover.drafts import DraftModel
from clover.drafts.vocabulary import target_tokens
from clover.tree import RerankTree, TokenTree


class RerankDrafter:
    """Keeps the candidates with the highest probability of the path that leads to them.

    Expansion: at each depth the K best nodes get K children each. Re-ranking: of all children, whatever their depth,
    the best are the tree. No child is better than its parent, and among equals the one found earlier wins, parents
    before children: so the best always form a tree. Probabilities are the draft's own, at temperature 1. In sampled
    rows they are taken at the row's temperature, after the numbers by which the target will choose are added to the
    logits (`Sampler.gumbel_scores`).
    """

    def __init__(self, draft: DraftModel, tree: RerankTree):
        self.max_depth = min(draft.max_depth, tree.depth, tree.budget)
        self.d2t = draft.d2t
        self.beam = min(tree.beam, draft.target.vocab_size if self.d2t is None else len(self.d2t))
        self.max_nodes = 1 + min(tree.budget, self.beam * (1 + (self.max_depth - 1) * self.beam))

    def grow(self, given: DraftInput) -> TokenTree:
        (session, logits), root, sampler = given.catch_up(), given.root, given.sampler
        output, scores = logits.unsqueeze(1), torch.zeros_like(root, dtype=torch.float64).unsqueeze(1)
        parent_of = torch.zeros_like(root).unsqueeze(1)  # where the frontier is among all nodes
        tokens, parents, values, first = [root.unsqueeze(1)], [parent_of], [scores], 1
        for depth in range(1, self.max_depth + 1):
            found, indices = self._children(sampler.gumbel_scores(output, depth - 1, self.d2t), scores)
            children = target_tokens(self.d2t, indices)
            width = found.shape[1] // output.shape[1]
            tokens.append(children)
            parents.append(parent_of.repeat_interleave(width, dim=1))
            values.append(found)
            if depth < self.max_depth:
                scores, places = best(found, self.beam)
                output = session.advance(places // width, children.gather(1, places))
                parent_of, first = first + places, first + found.shape[1]
        return self._reranked(torch.cat(tokens, 1), torch.cat(parents, 1), torch.cat(values, 1))

    def _children(self, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The best children of each frontier node.

        Args:
            logits: [B, P, V].
            scores: float64 [B, P], log-probability of the path to each node.

        Returns:
            log-probabilities of the paths float64 [B, P * K], and indices Long [B, P * K].
        """
        found, indices = likeliest(logits, self.beam)
        return (scores.unsqueeze(2) + found).flatten(1), indices.flatten(1)

    def _reranked(self, tokens: Tensor, parents: Tensor, values: Tensor) -> TokenTree:
        """The root and the best candidates; tokens, parents Long [B, C], values float64 [B, C]."""
        kept, places = best(values, self.max_nodes)
        exists = torch.zeros_like(tokens, dtype=torch.bool).scatter(1, places, kept > -torch.inf)
        return compact(tokens, parents, exists, self.max_nodes, self.max_depth)
