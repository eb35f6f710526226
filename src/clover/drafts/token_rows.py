"""The committed tokens of a batch of texts of different lengths, in the rows and slots of a key-value cache.

The cache knows which rows are in use and how long each text is: row b owns the slots ``0 .. cache.lengths[b] - 1``, and
what stands in later slots means nothing.

Shapes: R rows and S slots of the storage, B rows in use, A new tokens of each row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from clover.cache import KVCache
from clover.cache.rows import zeros


class TokenRows:
    """Tokens beside a `KVCache`: `storage` Long [R, S] has the cache's rows and slots."""

    def __init__(self, storage: Tensor):
        self.storage = storage

    @classmethod
    def new(cls, cache: KVCache) -> TokenRows:
        """Return rows for the texts of an empty cache."""
        keys, _ = cache.storage
        return cls(zeros((keys.shape[1], keys.shape[3]), torch.long, keys.device))

    def fit(self, cache: KVCache) -> None:
        """Follow the cache where it has grown or shrunk."""
        keys, _ = cache.storage
        rows, slots = keys.shape[1], keys.shape[3]
        if self.storage.shape != (rows, slots):
            kept = self.storage[:rows, :slots]
            self.storage = zeros((rows, slots), torch.long, keys.device)
            self.storage[: kept.shape[0], : kept.shape[1]] = kept

    def write(self, cache: KVCache, tokens: Tensor) -> None:
        """Write tokens Long [B, A] behind the texts, inside the cache's `begin` and `commit`."""
        rows, count = tokens.shape
        if cache.uniform:
            self.storage[:rows, cache.length : cache.length + count] = tokens
            return
        slots = cache.lengths_on_device[:, None] + torch.arange(count, device=tokens.device)
        self.storage[torch.arange(rows, device=tokens.device)[:, None], slots] = tokens

    def last(self, cache: KVCache, count: int) -> Tensor:
        """Return the last tokens of each text, Long [B, count], -1 before its first one."""
        rows = self.storage[: cache.batch_size]
        if cache.uniform:
            start = cache.length - count
            return pad(rows[:, max(start, 0) : cache.length], (max(-start, 0), 0), value=-1)
        slots = cache.lengths_on_device[:, None] + torch.arange(-count, 0, device=rows.device)
        return rows.gather(1, slots.clamp(min=0)).masked_fill(slots < 0, -1)

    def copy(self, source: int, row: int) -> None:
        """Let `row` have the tokens of row `source`."""
        self.storage[row] = self.storage[source]

    def insert(self, other: TokenRows, count: int, first: int, length: int) -> None:
        """Copy the first `count` rows of others, `length` slots of each, into the rows from `first` on."""
        self.storage[first : first + count, :length] = other.storage[:count, :length]
