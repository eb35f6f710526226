"""A batch-wide budget: the candidates of all rows compete for one number of nodes.

Where a row's text is easy for the draft, another node is worth more than where it is hard. So rows get trees of
different sizes, and more tokens are accepted of the same number verified than with one size for all (docs/auto.md).

Shapes: B batch, K beam and children per node, C candidates of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clover.drafting.best import best, compact
from clover.drafting.calibration import Calibration
from clover.drafting.rerank import RerankDrafter
from clover.drafts import DraftModel
from clover.tree import RerankTree, SharedTree, TokenTree

_WIDEST, _LEAST_WIDEST = (
    2,
    6,
)  # times the budget per row, and nodes: where more was allowed, no more was accepted
_LEAST_BEAM, _MOST_BEAM = 2, 10


class SharedDrafter(RerankDrafter):
    """Expands a beam in each row, then keeps the best candidates of the batch, N per row on average.

    Expansion and re-ranking are EAGLE-2's (`RerankDrafter`) with a beam of half the budget per row; what is compared
    are the probabilities of paths, each factor calibrated if a calibration is given. No row gets more than twice its
    share, or six nodes: the target runs as many nodes for every row as for the widest, and padding costs what nodes
    cost, unless the device waits for its memory anyway. Among equals the first row's candidate wins. A single row gets
    N nodes.
    """

    def __init__(self, draft: DraftModel, tree: SharedTree, calibration: Calibration | None = None):
        beam = min(max(tree.budget // 2, _LEAST_BEAM), _MOST_BEAM)
        widest = max(_WIDEST * tree.budget, _LEAST_WIDEST)
        super().__init__(draft, RerankTree(widest, beam, tree.depth))
        self.budget, self.calibration = tree.budget, calibration

    def _believed(self, log_probs: Tensor, depth: int) -> Tensor:
        return log_probs if self.calibration is None else self.calibration.apply(log_probs.exp(), depth).log()

    def _reranked(self, tokens: Tensor, parents: Tensor, values: Tensor) -> TokenTree:
        rows, budget = len(tokens), self.budget * len(tokens)
        size = min(self.max_nodes, 1 + budget)
        kept, places = best(values, size)
        drafted = kept[:, 1:].flatten()  # the root is first of all, it has no rivals
        won, winners = best(drafted, min(budget, len(drafted)))
        chosen = torch.zeros_like(drafted, dtype=torch.bool).scatter(0, winners, won > -torch.inf)
        chosen = torch.cat((torch.ones_like(chosen[:rows, None]), chosen.view(rows, -1)), dim=1)
        exists = torch.zeros_like(tokens, dtype=torch.bool).scatter(1, places, chosen)
        return compact(tokens, parents, exists, size, self.max_depth)
