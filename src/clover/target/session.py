"""A running batch of a model of transformers: its key-value cache, and the masks and positions of each forward pass.

Shapes: B rows, N nodes of a tree or tokens of plain text, A nodes of an accepted path.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from clover.cache import KVCache
from clover.target.cached_model import CachedModel
from clover.target.protocol import TargetOutput
from clover.tree import TokenTree


class CachedSession:
    """The `TargetSession` of a model with a key-value cache.

    Attributes:
        cache: keys and values of the texts. Compiled steps, which run the model themselves, write to it directly.
    """

    def __init__(self, target: CachedModel, cache: KVCache) -> None:
        self._target, self.cache = target, cache

    @property
    def lengths(self) -> list[int]:
        """Return the number of cached tokens of each row."""
        return self.cache.lengths

    @torch.no_grad()
    def run(
        self, tokens: Tensor | TokenTree, hidden_state: str = "post_norm", logits: bool = True
    ) -> TargetOutput:
        """Run plain text Long [B, N], or trees of N nodes, on top of the cache (`TargetSession.run`)."""
        if isinstance(tokens, TokenTree):
            tokens, positions, mask = self._place(tokens)
        else:
            # Padding may reach beyond the last position that the model knows.
            positions = self.cache.positions(tokens.shape[1]).clamp(max=self._target.longest_run - 1)
            mask = None
        self.cache.begin(tokens.shape[1])
        output = self._target.forward(tokens, positions, self.cache, mask, hidden_state)
        return TargetOutput(output.read, self._target.logits(output.hidden) if logits else None)

    def _place(self, tree: TokenTree) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return tokens and positions, Long [B, N], and the mask of a tree; None where a lone root sees all slots."""
        cache, start = self.cache, self.cache.positions(1)
        if tree.tokens.shape[1] > 1:
            return tree.tokens, start + tree.depths, cache.attention_mask(tree.ancestor_mask)
        return tree.tokens, start, None if cache.uniform else cache.attention_mask(tree.ancestor_mask)

    def keep(self, path: Tensor, counts: Sequence[int]) -> None:
        """Move the accepted nodes, Long [B, A], behind the texts."""
        self.cache.keep(path, counts)

    def commit(self, counts: Sequence[int]) -> None:
        """Keep the first ``counts[b]`` of the new tokens of row b."""
        self.cache.commit(counts)

    def crop(self, lengths: Sequence[int]) -> None:
        """Forget all but the first ``lengths[b]`` tokens of row b."""
        self.cache.crop(lengths)

    def drop(self, row: int) -> None:
        """Remove a row: the last row moves to its place."""
        self.cache.drop(row)

    def insert(self, other: CachedSession) -> None:
        """Add the rows of another session after the present rows."""
        self.cache.insert(other.cache)

    def first_rows(self, rows: int) -> AbstractContextManager[None]:
        """Let the session have its first rows only, inside a ``with`` block."""
        return self.cache.first_rows(rows)

    def copy_row(self, row: int, length: int) -> CachedSession:
        """Return a copy of the first `length` tokens of a row, as a session of one row."""
        return CachedSession(self._target, self.cache.copy_row(row, length))

    def fill_row(self, row: int, other: CachedSession, length: int) -> None:
        """Copy the first `length` tokens of another session's only row to an empty row."""
        self.cache.fill_row(row, other.cache, length)

    def row_bytes(self, length: int) -> int:
        """Return the memory that `copy_row` of `length` tokens needs, in bytes."""
        return self.cache.row_bytes(length)
