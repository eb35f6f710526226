"""Clover-1's dynamic tree (arXiv 2405.00263, section 3): a budget of nodes goes to the most probable ones.

Shapes: B batch, P frontier nodes, C candidates of a level, V the draft's vocabulary.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from clover.drafting.base import Drafter, DraftInput
from clover.drafting.guide import Guide
from clover.drafting.top_k import MOST_SORTED, best, compact_trees, likeliest
from clover.drafting.tree import Tree
from clover.drafts import DraftModel
from clover.drafts.vocabulary import target_tokens
from clover.tree import TokenTree
from clover.validation import checked

_LEAST_SHARE = 0.25  # A child below this share of the best child's probability is dropped.
_ROUNDING = 1e-6  # The tolerance for rounding of a sum of probabilities.


@checked
class BudgetTree(Tree):
    """Clover-1's dynamic tree: few nodes, those with the highest joint probability.

    Attributes:
        budget: draft tokens per step at most, root excluded; at most 512.
        mass: a node's most probable children are candidates while their probabilities sum to at most this; the first
            always is one. In (0, 1].
    """

    budget: Annotated[int, Field(ge=1, le=MOST_SORTED)]
    mass: Annotated[float, Field(gt=0, le=1)] = 0.8

    word = "budget"
    example = "budget:4"

    def drafter(self, draft: DraftModel) -> "BudgetDrafter":
        return BudgetDrafter(draft, self)


class BudgetDrafter(Drafter):
    """Grows level by level until the budget is spent or the draft ends.

    1. Token level: a node's most probable children are candidates while their probabilities sum to at most `mass`, and
    each is at least a quarter of the highest. The first always is a candidate.
    2. Tree level: the candidates of a depth with the highest joint probabilities are kept, as many as the budget
    allows. Among equals the order of the parents, then of the tokens decides.
    3. Head level: the kept nodes are subtracted from the budget.

    Probabilities are the draft's at temperature 1; in sampled sequences those after Gumbel coupling
    (`Sampler.gumbel_scores`). A level has room for the most nodes that any sequence could keep, because the host does
    not know the actual number.
    """

    def __init__(self, draft: DraftModel, tree: BudgetTree):
        self.tree, self.d2t, self._on_cpu = tree, draft.session_tokens, draft.target.device.type == "cpu"
        self.max_depth = min(draft.max_depth, tree.budget)
        self.max_nodes = 1 + tree.budget
        # A level has room for the most nodes that any sequence could keep.
        self.max_expanded = sum(tree.budget - depth for depth in range(self.max_depth - 1))

    def grow(self, batch: DraftInput) -> TokenTree:
        (session, output), tokens = batch.commit_draft(), [batch.root]
        exists = [torch.ones_like(tokens[0], dtype=torch.bool)]
        parents, first, joint = [torch.zeros_like(tokens[0])], 0, exists[0].double()
        left, guide = torch.full_like(tokens[0], self.tree.budget), Guide.of(batch, self.d2t)
        for depth in range(1, self.max_depth + 1):
            room = self.tree.budget - depth + 1
            output = output if guide is None else guide.restrict(output)
            scores = batch.sampler.gumbel_scores(output, depth - 1, self.d2t)
            candidates, values = self._candidates(scores, joint, room)
            joint, places = best(values, min(room, values.shape[1]))
            kept = (joint > 0) & (torch.arange(joint.shape[1], device=left.device) < left)
            joint = joint * kept
            slots = places // (values.shape[1] // output.shape[1])
            tokens.append(candidates.gather(1, places))
            parents.append(first + slots)
            first += output.shape[1]
            exists.append(kept)
            left = left - kept.sum(1, keepdim=True)
            if depth == self.max_depth or self._spent(left):
                break
            if guide is not None:
                guide.follow(slots.tolist(), tokens[-1])
            output = session.advance(slots, tokens[-1])
        grown = (torch.cat(parts, dim=1) for parts in (tokens, parents, exists))
        return compact_trees(*grown, size=self.max_nodes, max_depth=self.max_depth)

    def _spent(self, left: Tensor) -> bool:
        """Return True if all budgets are spent and this is known without waiting for a device or breaking a graph."""
        return self._on_cpu and not torch.compiler.is_compiling() and not bool(left.any())

    def _candidates(self, scores: Tensor, joint: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """Choose candidates by scores [B, P, V] and joint probabilities float64 [B, P], 0 for nodes that do not exist.

        Returns tokens Long [B, C] and their joint probabilities float64 [B, C], 0 for tokens that are not candidates.
        """
        log_probs, indices = likeliest(scores, min(room, scores.shape[2]))
        probs = log_probs.exp()
        candidate = (probs.cumsum(2) <= self.tree.mass + _ROUNDING) & (probs >= _LEAST_SHARE * probs[..., :1])
        candidate[..., 0] = True
        values = joint.unsqueeze(2) * probs * candidate
        return target_tokens(self.d2t, indices).flatten(1), values.flatten(1)
