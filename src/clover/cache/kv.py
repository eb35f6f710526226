"""The key-value cache of a batch of texts of different lengths.

Row b owns the slots ``0 .. lengths[b] - 1``; later slots are scratch. A forward pass of N tokens writes all rows from
``max(lengths)`` on: two slice copies per layer. The mask hides the gap of shorter rows; `keep` or `commit` closes it.

An example for B = 2, with letters for the keys of tokens. The texts are ``abc`` and ``d``, and each row runs a tree of
four nodes, 0 to 3. In row 0 the nodes 0 and 2 are accepted, in row 1 the nodes 0, 1 and 3::

    slot                     0 1 2 3 4 5 6    lengths
    before keep    row 0     a b c 0 1 2 3    3
                   row 1     d . . 0 1 2 3    1
    after          row 0     a b c 0 2 . .    5        keep([[0, 2, 2], [0, 1, 3]], [2, 3])
                   row 1     d 0 1 3 . . .    4

The numbers in slots marked by a dot, and in all later slots, are never read. Nothing is moved if the accepted nodes are
already in their final slots, as in plain decoding with rows of equal length.

Shapes: B rows of the batch, L layers, S slots, N nodes (or new tokens) of one forward pass, A nodes of an accepted
path, Hkv key-value heads, Dk / Dv their widths, S' slots that a forward pass reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from clover.cache.rows import RowStore


class ModelCache(Cache):
    """A ``transformers.Cache``, because models test for this type, with the properties that models read."""

    num_layers: int

    def __len__(self) -> int:
        return self.num_layers

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return -1, which means no limit, because the cache grows."""
        return -1

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return True

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * self.num_layers

    is_linear = is_dummy = is_sliding  # pyright: ignore[reportIncompatibleMethodOverride]


class KVCache(RowStore, ModelCache):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The cache of texts in rows, during and after forward passes."""

    # Layers write the first `_of_layers` storage tensors; the number of slots read is a multiple of `_multiple`.
    _of_layers, _multiple = 2, 1

    def __init__(self, *storage: Tensor) -> None:
        self.layers = []
        self.num_layers = storage[0].shape[0]
        super().__init__(*storage)

    # -- one forward pass ----------------------------------------------------------------------------------------

    def begin(self, num_tokens: int, after: int = 0) -> None:
        """Announce a forward pass of N tokens in every row; grow if they do not fit.

        They follow, and may see, the ``after`` tokens that ran since the last `keep` or `commit`: a draft runs the
        depths of its tree one after another.
        """
        start = self.length + after
        read = self.padded(start + num_tokens)
        if read > self.capacity:
            self._grow(read)
        self._start, self._count, self._in_place = start, num_tokens, self.uniform
        parts = self.used[: self._of_layers]
        self._reads = [part.narrow(3, 0, read).unbind(0) for part in parts]
        self._writes = [part.narrow(3, start, num_tokens).unbind(0) for part in parts]

    @classmethod
    def padded(cls, slots: int) -> int:
        """Return how many slots are read if `slots` are filled."""
        return -(-slots // cls._multiple) * cls._multiple

    def begin_fixed(self, num_tokens: int, room: int) -> None:
        """Announce a forward pass of N tokens, padding included, of a `FixedCache` over `storage` and `row_lengths`.

        The pass writes row b from ``lengths[b]`` on, at most `room` slots after the longest row, and reads all slots.
        The storage grows here, never during the pass.
        """
        self._fix(self.length + room)
        self._close()
        self._count, self._in_place = num_tokens, True

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys [B, Hkv, N, Dk] and values [B, Hkv, N, Dv]; called by attention layers.

        Return views [B, Hkv, S', Dk] and [B, Hkv, S', Dv] with S' = max(lengths) + after + N, as `begin` announced.
        """
        assert key_states.shape[2] == self._count, "begin(n) must announce the tokens of every forward"
        for written, states in zip(self._writes, (key_states, value_states), strict=True):
            written[layer_idx].copy_(states)
        return self._reads[0][layer_idx], self._reads[1][layer_idx]

    def write_tokens(self, tokens: Tensor) -> None:
        """Store the new tokens Long [B, N], if the cache stores tokens."""
        self.tokens[:, self._start : self._start + self._count] = tokens

    def last_tokens(self, count: int) -> Tensor:
        """Return the last tokens of each text before the new ones, Long [B, count]; -1 before its first token."""
        if self.uniform:
            start = self.length - count
            return pad(self.tokens[:, max(start, 0) : self.length], (max(-start, 0), 0), value=-1)
        return gathered_tokens(self.tokens, self.lengths_on_device, count)

    def attention_mask(self, ancestor_mask: Tensor) -> Tensor:
        """Return the slots that each new token sees, those of its row's text and its ancestors: Bool [B, 1, N, S'].

        The ancestor mask, Bool [B, N, N], is True where the column is an ancestor of the row, or the row itself. After
        ``begin(N, after)`` it has ``after`` more columns at the front.
        """
        if self.uniform:
            return pad(ancestor_mask, (self.length, 0), value=True).unsqueeze(1)
        device, length = ancestor_mask.device, self.length
        cached = torch.arange(length, device=device) < self.lengths_on_device[:, None, None]
        cached = cached.expand(-1, ancestor_mask.shape[1], -1)
        return torch.cat([cached, ancestor_mask], dim=-1).unsqueeze(1)

    def causal_mask(self, num_tokens: int) -> Tensor:
        """Return the `attention_mask` of N tokens of plain text in every row: Bool [B, 1, N, S']."""
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=self.keys.device).tril()
        return self.attention_mask(causal.expand(self.batch_size, -1, -1))

    def positions(self, num_tokens: int) -> Tensor:
        """Return the positions of the next N tokens of plain text: Long [B, N], from ``lengths[b]`` on."""
        steps = torch.arange(num_tokens, device=self.keys.device)
        if self.uniform:
            return (steps + self.length).expand(self.batch_size, -1)
        return self.lengths_on_device[:, None] + steps

    def slot_positions(self, positions: Tensor) -> Tensor:
        """Return the text position of every slot that a forward pass reads: Long [B, max(lengths) + N].

        `positions` Long [B, N] are those of the new tokens. The result is arbitrary for slots without text, which masks
        hide.
        """
        cached = torch.arange(self.length, device=positions.device).expand(positions.shape[0], -1)
        return torch.cat([cached, positions], dim=1)

    def text(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the keys and values of one layer for the rows' texts, between forward passes.

        Returns:
            keys [B, Hkv, S', Dk] and values [B, Hkv, S', Dv] with S' = max(lengths), and the mask Bool [B, 1, 1, S'],
            True for slots with text; None if all slots have text.
        """
        length = self.length
        mask = None
        if not self.uniform:
            slots = torch.arange(length, device=self.keys.device)
            mask = (slots < self.lengths_on_device[:, None])[:, None, None]
        return self.keys[layer, :, :, :length], self.values[layer, :, :, :length], mask

    # -- after the forward pass ----------------------------------------------------------------------------------

    def keep(self, path: Tensor, counts: Sequence[int]) -> None:
        """Keep the accepted path of each row's tree and forget the other nodes.

        The path, Long [B, A], goes from the root (0) down; entries after a row's count, at most N, are not read. On a
        GPU nodes are moved even if they are in their final slots, because a test would make the host wait.
        """
        assert len(counts) == self.batch_size and max(counts) <= self._count
        width = max(counts)
        first = self._first_to_move(path, counts) if self._in_place else 0
        if first < width:
            self._move(path[:, first:width], first)
        self._advance(counts)

    def commit(self, counts: Sequence[int]) -> None:
        """Keep the first ``counts[b]`` of the N new tokens of row b: plain text, padded on the right."""
        assert len(counts) == self.batch_size and max(counts) <= self._count
        width = max(counts)
        if width and not self._in_place:
            self._move(torch.arange(width, device=self.keys.device).expand(self.batch_size, -1), 0)
        self._advance(counts)

    def _advance(self, counts: Sequence[int]) -> None:
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self._close()

    def _close(self) -> None:
        super()._close()
        self._start, self._count, self._in_place = 0, 0, False
        # Both have one entry per part of the storage, which is indexed by layer.
        self._reads, self._writes = list[Sequence[Tensor]](), list[Sequence[Tensor]]()

    def _first_to_move(self, path: Tensor, counts: Sequence[int]) -> int:
        """Return the smallest depth at which a path node is not in its final slot; max(counts) if there is none."""
        first = max(counts)
        if path.is_cuda:
            return min(1, first)
        for nodes, count in zip(path[:, :first].tolist(), counts, strict=True):
            first = next((i for i in range(min(first, count)) if nodes[i] != i), first)
        return first

    def _move(self, nodes: Tensor, offset: int) -> None:
        """Copy new slots ``nodes`` [B, A] of row b to ``lengths[b] + offset`` and following."""
        width, device = nodes.shape[1], self.keys.device
        nodes = nodes.to(device)
        if self.uniform:
            sources = nodes + self.length
            for storage in self.used:
                storage.narrow(3, self.length + offset, width).copy_(_gathered(storage, sources))
            return
        sources = nodes + (self.lengths_on_device[:, None] if self._in_place else self._start)
        rows = torch.arange(self.batch_size, device=device)[:, None]
        targets = self.positions(offset + width)[:, offset:]
        for storage in self.used:
            storage[:, rows, :, targets] = storage[:, rows, :, sources]

    # -- read by models of transformers --------------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of slots before those of the current forward pass."""
        return self.length

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int = 0) -> tuple[int, int]:
        """Return the mask's width and its first column's offset. Older releases pass positions instead of a number."""
        new = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.length + new, 0


def gathered_tokens(tokens: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Return the last tokens of texts, Long [B, count], from tokens Long [B, S] and lengths Long [B]; -1 if missing."""
    slots = lengths[:, None] + torch.arange(-count, 0, device=tokens.device)
    return tokens.gather(1, slots.clamp(min=0)).masked_fill(slots < 0, -1)


def _gathered(storage: Tensor, sources: Tensor) -> Tensor:
    """Return slots ``sources`` [B, A] of ``storage`` [L, B, Hkv, S, D] as a new tensor [L, B, Hkv, A, D]."""
    if sources.shape[0] == 1:
        return storage.index_select(3, sources[0])
    rows = torch.arange(sources.shape[0], device=sources.device)[:, None]
    return storage[:, rows, :, sources].permute(2, 0, 3, 1, 4)
