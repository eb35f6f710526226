"""Sessions: the state of a draft for one running batch.

Shapes: B batch, A committed positions of one call, P frontier nodes, K nodes drafted since the last commit, T text,
H hidden, W width of the hidden states that are read, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Self

from clover.cache import CachedRows, KVCache

Counts = Sequence[int] | Tensor  # the number of real positions in each row: on the host, or Long [B]


class DraftSession(CachedRows):
    """The state of a draft for one running batch. It commits only verified positions, so no step undoes anything.

    The draft's `read` runs over committed positions, and `cache` stores what later positions need; its `step` runs at
    every depth. A tree needs only the states of the last expanded nodes, unless the draft has a `TreeSession`.
    """

    def __init__(self, draft: Any, cache: KVCache):
        self.draft, self.cache = draft, cache
        self.states = torch.empty(0)  # the states [B, P, H] of the last expanded nodes
        self.depth = 0  # the number of calls of `advance` since the last `commit`

    def over(self, cache: Any) -> Self:
        return type(self)(self.draft, cache)

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: Counts) -> Tensor:
        """Commit positions that the target has run.

        Args:
            hidden: [B, A, W] the target's hidden states there, of the kind `config.hidden_state`.
            next_tokens: Long [B, A] the token after each position.
            counts: how many of the A positions are real in each sequence; the others are padding at the end. Long [B]
                in compiled steps.

        Returns:
            logits [B, V] over the draft's `session_tokens`, after the last committed pair: the first depth of the tree.
        """
        self.cache.begin(hidden.shape[1])
        states = self.read(hidden, next_tokens)
        self.cache.commit(counts)
        self.depth = 0
        return self._logits(last_position(states, counts), last_position(next_tokens, counts))[:, 0]

    def advance(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Go one depth down; return logits [B, P, V] for the children of these nodes, which are the next frontier.

        Args:
            parents: Long [B, P] for each node, the row of its parent in the previous call's logits; 0 on the first call
                after `commit`, because `commit` returns one row.
            tokens: Long [B, P] the nodes' tokens, as the target's ids.
        """
        self.depth += 1
        return self._logits(self._states_of(parents), tokens)

    def read(self, hidden: Tensor, next_tokens: Tensor) -> Tensor:
        """Run the draft's `read` over the cache, from [B, A, W] and tokens Long [B, A] to states [B, A, H]."""
        return self.draft.read(hidden, next_tokens, self.cache)

    def step(self, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run the draft's `step` at this depth on [B, P, H] and tokens Long [B, P]; return states and outputs."""
        return self.draft.step(self.depth, parents, tokens)

    def _logits(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Return logits [B, P, V] after tokens Long [B, P]; a draft that ignores tokens has one row for all nodes."""
        self.states, outputs = self.step(parents, tokens)
        return self.draft.logits(outputs, self.depth).expand(-1, tokens.shape[1], -1)

    def _states_of(self, parents: Tensor) -> Tensor:
        """Return the states [B, P, H] of the frontier nodes `parents`, Long [B, P]."""
        if not self.draft.conditions_on_drafted_tokens or parents.shape[1] == self.states.shape[1] == 1:
            return self.states
        return self.states.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.states.shape[-1]))


class TreeSession(DraftSession):
    """The session of drafts that attend inside the tree: a node attends to the text and its own drafted ancestors.

    Their `run` computes true pairs and nodes in the same way. Until the next commit, the cache contains all nodes of
    the tree after the committed pairs.
    """

    paths: Tensor  # Bool [B, P, K] marks the drafted nodes on each frontier node's path, including itself

    def advance(self, parents: Tensor, tokens: Tensor) -> Tensor:
        rows, nodes = tokens.shape
        before = self.paths.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.paths.shape[-1]))
        itself = torch.eye(nodes, dtype=torch.bool, device=tokens.device).expand(rows, -1, -1)
        self.paths = torch.cat((before, itself), dim=-1)
        self.cache.begin(nodes, after=before.shape[-1])
        return super().advance(parents, tokens)

    def step(self, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self.depth == 0:
            self.paths = torch.empty(len(tokens), 1, 0, dtype=torch.bool, device=tokens.device)
        else:
            positions = (self.cache.positions(1) + self.depth - 1).expand_as(tokens)
            mask = self.cache.attention_mask(self.paths)
            parents = self.draft.run(parents, tokens, self.cache, positions, mask)
        return self.draft.step(0, parents, tokens)


def last_position(values: Tensor, counts: Counts) -> Tensor:
    """Return the last real position of each sequence, [B, 1, …] of [B, A, …]."""
    if not isinstance(counts, Tensor):
        if min(counts) == max(counts) >= 1:
            return values[:, counts[0] - 1 : counts[0]]
        counts = torch.tensor(counts, device=values.device)
    rows = torch.arange(len(counts), device=values.device)
    return values[rows, (counts - 1).clamp(min=0)].unsqueeze(1)


def shifted(tokens: Tensor, by: int) -> Tensor:
    """Return tokens [B, T] shifted left by `by` places and padded with token 0, which the loss ignores."""
    return pad(tokens, (0, by))[:, by:]
