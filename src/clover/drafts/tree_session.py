"""The session of drafts that attend inside the tree: each node sees the committed text and its own drafted ancestors.

Shapes: B batch, A committed positions, P frontier nodes, K nodes drafted since the last commit, H hidden, W width of
the hidden states that are read, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from clover.cache import KVCache
from clover.drafts.frontier_session import FrontierSession, last_position


class StepwiseDraft(Protocol):
    """A draft that repeats one step: a state and the token after it in, the next state out."""

    def read(self, hidden: Tensor) -> Tensor:
        """States [B, A, H] of the target's hidden states [B, A, W]."""
        ...

    def step(
        self, states: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> Tensor:
        """States [B, N, H] one position on; the keys and values of this one go into the cache.

        Args:
            states: [B, N, H].
            tokens: Long [B, N], the token that follows each state.
            positions: Long [B, N].
            mask: Bool [B, 1, N, S'] of the cache; None for plain text.
            cache: after `begin(N)`.
        """
        ...

    def state_logits(self, states: Tensor) -> Tensor:
        """Logits [..., V] that states [..., H] give."""
        ...


class TreeSession(FrontierSession):
    """One running batch: the cache of committed pairs, and behind it, until the next commit, all nodes of the tree."""

    def __init__(self, draft: StepwiseDraft, cache: KVCache):
        super().__init__(cache)
        self.draft = draft
        self.paths = torch.empty(
            0
        )  # Bool [B, P, K]: the drafted nodes on each frontier node's path, itself included

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        draft, cache, added = self.draft, self.cache, hidden.shape[1]
        positions = cache.positions(added)
        cache.begin(added)
        states = draft.step(draft.read(hidden), next_tokens, positions, None, cache)
        cache.commit(counts)
        self.states, self.depth = last_position(states, counts), 0
        self.paths = torch.empty(len(counts), 1, 0, dtype=torch.bool, device=states.device)
        return draft.state_logits(self.states[:, 0])

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        draft, cache, nodes = self.draft, self.cache, tokens.shape[1]
        before = self.paths.gather(1, slots.unsqueeze(-1).expand(-1, -1, self.paths.shape[-1]))
        itself = torch.eye(nodes, dtype=torch.bool, device=tokens.device).expand(len(tokens), -1, -1)
        self.paths = torch.cat((before, itself), dim=-1)
        cache.begin(nodes, after=before.shape[-1])
        positions = (cache.positions(1) + self.depth).expand(-1, nodes)
        self.states = draft.step(
            self.parents(slots), tokens, positions, cache.attention_mask(self.paths), cache
        )
        self.depth += 1
        return draft.state_logits(self.states)
