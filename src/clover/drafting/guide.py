"""Drafting under grammars: the draft proposes only tokens that the grammar of a text allows.

Verification does not depend on this (`clover.sampling.processors`): it rejects excluded tokens anyway. If the grammar
allows only one token, it is drafted even if the draft does not know it.

Shapes: B batch, P nodes of the level that is expanded, V the draft's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clover.drafting.base import DraftInput
from clover.sampling import GrammarState


class Guide:
    """The grammar states of the nodes of growing trees.

    Args:
        states: the states of the trees' roots; None for texts without a grammar.
        d2t: Long [V], the tokens of the draft's logits; None for the whole vocabulary.
    """

    def __init__(self, states: Sequence[GrammarState | None], d2t: Tensor | None = None):
        self._nodes, self._d2t = [[state] for state in states], d2t

    @classmethod
    def of(cls, batch: DraftInput, d2t: Tensor | None = None) -> Guide | None:
        """Return the guide of a step; None if no text has a grammar."""
        states = batch.sampler.grammar_states
        return cls(states, d2t) if states else None

    def expand(self, places: Sequence[int]) -> None:
        """Select the nodes of the last level that are expanded, in this order."""
        self._nodes = [[nodes[place] for place in places] for nodes in self._nodes]

    def restrict(self, logits: Tensor) -> Tensor:
        """Return logits [B, P, V] for the children of the last level, -inf for tokens that grammars exclude."""
        logits = logits.clone()
        for row, nodes in enumerate(self._nodes):
            for place, state in enumerate(nodes):
                excluded = None if state is None else state.excluded
                if excluded is not None:
                    excluded = excluded.to(logits.device)
                    excluded = excluded if self._d2t is None else excluded[self._d2t]
                    logits[row, place].masked_fill_(excluded, -torch.inf)
        return logits

    def force(self, tokens: Tensor, parents: Sequence[int], ranks: Sequence[int]) -> Tensor:
        """Return children Long [B, C] of the last level; if a grammar allows one token, it is the node's best child."""
        tokens = tokens.clone()
        for row, nodes in enumerate(self._nodes):
            for child, (parent, rank) in enumerate(zip(parents, ranks, strict=True)):
                above = nodes[parent]
                if rank == 0 and above is not None and above.only is not None:
                    tokens[row, child] = above.only
        return tokens

    def follow(self, parents: Sequence[Sequence[int]], tokens: Tensor) -> None:
        """Make children Long [B, C] the last level; `parents` are their places in the level before."""
        self._nodes = [
            [above and above.after(token) for above, token in zip((nodes[p] for p in row), said, strict=True)]
            for nodes, row, said in zip(self._nodes, parents, tokens.tolist(), strict=True)
        ]
