"""Shared parts of dynamic trees: the best of many candidates, with ties, and trees from kept candidates.

Shapes: B batch, C candidates, N nodes (root included).
"""

import torch
from torch import Tensor

from clover.tree import TokenTree

# The most nodes, or children of a node. Each step sorts up to its square of candidates.
MOST_SORTED = 512


def best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest `count` of values [..., C] in descending order, and their places; the first of equals wins.

    `topk` does not define which of equals it returns, nor their order, and trees must not depend on that. Values above
    the lowest returned one are always the same; a running count finds the first of those equal to it. NaN counts as
    -inf.

    >>> best(torch.tensor([0.5, 0.1, 0.5, 0.3, 0.1]), 4)
    (tensor([0.5000, 0.5000, 0.3000, 0.1000]), tensor([0, 2, 3, 1]))
    """
    values = values.masked_fill(values.isnan(), -torch.inf)
    top = values.topk(count)
    lowest = top.values[..., -1:]
    above = (top.values > lowest).sum(-1, keepdim=True, dtype=torch.int32)
    # Among values equal to the lowest, the first places win.
    ranks = (values == lowest).cumsum(-1, dtype=torch.int32)
    wanted = torch.arange(1, count + 1, dtype=torch.int32, device=values.device) - above
    first = torch.searchsorted(ranks, wanted)
    places = torch.where(wanted < 1, top.indices, first).sort(-1).values
    found, order = values.gather(-1, places).sort(dim=-1, descending=True, stable=True)
    return found, places.gather(-1, order)


def likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `best` of a draft's scores [..., V] as log-probabilities, computed only for these.

    Returns float64 and indices Long, both [..., count]; -inf for a score that is not finite, or if none is finite.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    found, indices = scores.max(-1, keepdim=True) if count == 1 else best(scores, count)
    log_probs = (found - scores.logsumexp(-1, keepdim=True)).double()
    return log_probs.nan_to_num(-torch.inf, posinf=-torch.inf, neginf=-torch.inf), indices


def compact_trees(tokens: Tensor, parents: Tensor, exists: Tensor, size: int, max_depth: int) -> TokenTree:
    """Build trees of N = `size` nodes from the candidates that each sequence keeps, at most N.

    `tokens` and `parents` are Long [B, C]; candidate 0 is the root, and parents come before their children. `exists`,
    Bool [B, C], marks the kept candidates; their parents are kept, too. No node is deeper than `max_depth`.
    """
    order = (~exists).long().sort(dim=1, stable=True).indices
    parents = order.argsort(1).gather(1, parents.clamp(min=0))
    parents = torch.where(exists, parents, -1)
    parents[:, 0] = -1
    order = order[:, :size]
    return TokenTree.from_parents(tokens.gather(1, order), parents.gather(1, order), max_depth)
