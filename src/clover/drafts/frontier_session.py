"""What sessions share whose tree needs no more than the states of the nodes that were expanded last.

Shapes: B batch, A committed positions, P frontier nodes, H hidden.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from typing_extensions import Self

from clover.cache import KVCache
from clover.fixed_cache import Counts


class FrontierSession:
    """The cache over committed positions and the states of the frontier.

    Args:
        cache: of the layers that run once per verified position.
        memory: what the frontier looks at of those positions, if it does.
    """

    def __init__(self, cache: KVCache, memory: KVCache | None = None):
        self.cache, self.memory = cache, memory
        self.states = torch.empty(0)  # [B, P, H], of the nodes that were expanded last
        self.depth = 0  # calls of `advance` since the last `commit`

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def on(self, cache: KVCache, memory: KVCache | None) -> Self:
        """The same session over other caches, for one step of fixed shape (`clover.fixed_cache`)."""
        session = copy.copy(self)
        session.cache, session.memory = cache, memory
        return session

    def drop(self, row: int) -> None:
        self.cache.drop(row)
        if self.memory is not None:
            self.memory.drop(row)

    def insert(self, other: FrontierSession) -> None:
        self.cache.insert(other.cache)
        if self.memory is not None and other.memory is not None:
            self.memory.insert(other.memory)

    def crop(self, lengths: list[int]) -> None:
        self.cache.crop(lengths)
        if self.memory is not None:
            self.memory.crop(lengths)

    def parents(self, slots: Tensor) -> Tensor:
        """States [B, P, H] of the frontier nodes `slots`, Long [B, P]."""
        if slots.shape[1] == self.states.shape[1] == 1:
            return self.states
        return self.states.gather(1, slots.unsqueeze(-1).expand(-1, -1, self.states.shape[-1]))


def counting_cache(batch_size: int, like: Tensor) -> KVCache:
    """A cache of no layers, for drafts that keep nothing of committed positions but their number."""
    return KVCache.new(0, batch_size, 1, 1, 1, 1, like.dtype, like.device)


def last_position(values: Tensor, counts: Counts) -> Tensor:
    """The last real position of each row: [B, A, …] to [B, 1, …]."""
    if not isinstance(counts, Tensor):
        if min(counts) == max(counts) >= 1:
            return values[:, counts[0] - 1 : counts[0]]
        counts = torch.tensor(counts, device=values.device)
    rows = torch.arange(len(counts), device=values.device)
    return values[rows, (counts - 1).clamp(min=0)].unsqueeze(1)


def shifted(tokens: Tensor, by: int) -> Tensor:
    """Tokens [B, T] moved left by `by` places; what comes in at the end is token 0 (the loss leaves it out)."""
    return torch.nn.functional.pad(tokens, (0, by))[:, by:]
