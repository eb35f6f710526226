"""Recursive rejection sampling without replacement, at one node (EAGLE, 2401.15077, section 3.3).

The children of the node were drawn from the draft's distribution q, one after another and without replacement. They
are tested in this order. Child x is accepted with probability min(1, r(x) / q(x)); at first, r is the target's
distribution. If x is refused, r becomes the positive part of r - q, x is removed from q, and both are normalized again.
If all children are refused, the token is drawn from the remaining r. This token, or the accepted child, has exactly the
target's distribution.

Shapes: B batch, N nodes, P nodes whose children were drawn, K children at most, V vocabulary.
"""

import torch
from torch import Tensor

from clover.tree import Draws, TokenTree


def draw_rule(tree: TokenTree, draws: Draws, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the rule at all nodes with drawn children at once; the loop is over the children of a node.

    Args:
        tree: the drafted tokens; its padding is not tested.
        draws: how the children were drawn.
        target_probs: float64 [B, P, V], the target's distributions at `draws.nodes`.

    Returns:
        thresholds: float64 [B, P, K]; the first child in the order of the draws whose test number is below its
            threshold is accepted. 0 for missing children.
        residual: float64 [B, P, V]; the distribution of the bonus token after all children were refused.
    """
    target, draft, thresholds = target_probs, draws.draft_probs, list[Tensor]()
    for child in draws.children.unbind(2):
        node = child.clamp(min=0)
        token = tree.tokens.gather(1, node).unsqueeze(2)
        drawn = draft.gather(2, token)
        exists = ((child >= 0) & (tree.parents.gather(1, node) >= 0)).unsqueeze(2) & (drawn > 0)
        ratio = torch.where(exists, target.gather(2, token) / drawn, 0.0)
        thresholds.append(ratio.clamp(max=1.0).squeeze(2))
        residual, undrawn = after_refusal(target, draft, token)
        target, draft = torch.where(exists, residual, target), torch.where(exists, undrawn, draft)
    return torch.stack(thresholds, dim=2), target


def after_refusal(target: Tensor, draft: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return both distributions [..., V] after a token [..., 1] drawn from `draft` has been refused."""
    residual = _normalised((target - draft).clamp(min=0), target)
    return residual, _normalised(draft.scatter(-1, token, 0.0), draft)


def _normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """Return probabilities [..., V]; `otherwise` if all weights are zero, which only rounding can cause."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, otherwise)
