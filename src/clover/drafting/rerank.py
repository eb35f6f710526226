"""EAGLE-2's dynamic tree (arXiv 2406.16858, section 4): expand a beam, then re-rank all candidates.

Shapes: B batch, K beam and children per node, C candidates, V the draft's vocabulary.
"""

from typing import Annotated

import torch
from pydantic import Field

from clover.drafting.base import Drafter, DraftInput
from clover.drafting.guide import Guide
from clover.drafting.static import known_tokens
from clover.drafting.top_k import MOST_SORTED, best, compact_trees, likeliest
from clover.drafting.tree import Tree
from clover.drafts import DraftModel
from clover.drafts.vocabulary import target_tokens
from clover.tree import TokenTree
from clover.tree.shape import MOST
from clover.validation import checked

_Few = Annotated[int, Field(ge=1, le=MOST_SORTED)]


@checked
class RerankTree(Tree):
    """EAGLE-2's dynamic tree: expand a beam, then keep the best of all candidates.

    Attributes:
        budget: draft tokens that are kept per step, root excluded; at most 512.
        beam: nodes that are expanded per depth, and children of each; at most 512.
        depth: depths of the beam, limited by those of the draft.
    """

    budget: _Few
    beam: _Few = 10
    depth: Annotated[int, Field(ge=1, le=MOST)] = 6

    word = "eagle2"
    example = "eagle2:60"

    def drafter(self, draft: DraftModel) -> "RerankDrafter":
        return RerankDrafter(draft, self)


class RerankDrafter(Drafter):
    """Keeps the candidates whose paths have the highest probabilities.

    Expansion: at each depth the K best nodes get K children each. Re-ranking: the best children of all depths become
    the tree. They always form one, because no child is better than its parent, and among equals the earlier one wins.
    Probabilities are the draft's at temperature 1; in sampled sequences those after Gumbel coupling
    (`Sampler.gumbel_scores`).
    """

    def __init__(self, draft: DraftModel, tree: RerankTree):
        self.max_depth = min(draft.max_depth, tree.depth, tree.budget)
        self.d2t = draft.session_tokens
        self.beam = min(tree.beam, known_tokens(draft))
        self.max_nodes = 1 + min(tree.budget, self.beam * (1 + (self.max_depth - 1) * self.beam))
        self.max_expanded = self.beam * (self.max_depth - 1)

    def grow(self, batch: DraftInput) -> TokenTree:
        (session, output), tokens = batch.commit_draft(), [batch.root]
        scores = torch.zeros_like(tokens[0], dtype=torch.float64)  # [B, P], scores of the frontier's paths
        parent_of = torch.zeros_like(tokens[0])  # the places of the frontier among all candidates
        parents, values, first = [parent_of], [scores], 1
        guide = Guide.of(batch, self.d2t)
        for depth in range(1, self.max_depth + 1):
            output = output if guide is None else guide.restrict(output)
            offered = batch.sampler.gumbel_scores(output, depth - 1, self.d2t)
            log_probs, indices = likeliest(offered, self.beam)
            found = (scores.unsqueeze(2) + log_probs).flatten(1)
            tokens.append(target_tokens(self.d2t, indices).flatten(1))
            parents.append(parent_of.repeat_interleave(self.beam, dim=1))
            values.append(found)
            if depth < self.max_depth:
                scores, places = best(found, self.beam)
                above, expanded = places // self.beam, tokens[-1].gather(1, places)
                if guide is not None:
                    guide.follow(above.tolist(), expanded)
                output = session.advance(above, expanded)
                parent_of, first = first + places, first + found.shape[1]
        every = torch.cat(tokens, 1)
        kept, places = best(torch.cat(values, 1), self.max_nodes)
        exists = torch.zeros_like(every, dtype=torch.bool).scatter(1, places, kept > -torch.inf)
        return compact_trees(every, torch.cat(parents, 1), exists, self.max_nodes, self.max_depth)
