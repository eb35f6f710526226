"""The key-value cache of a batch of texts of different lengths: the only place that edits KV tensors.

Row b owns the slots ``0 .. lengths[b] - 1``; every slot after them is scratch. A forward of N tokens writes all rows
from ``max(lengths)`` on: two slice copies per layer. The gap in shorter rows is hidden by the mask and closed by
``keep`` or ``commit``.

Shapes: B rows of the batch, L layers, S slots, N nodes (or new tokens) of one forward, A nodes of an accepted path,
Hkv key-value heads, Dk / Dv their widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from clover.storage import fixed_capacity, gathered, on_device, power_of_two, resized, zeros

KVShape = tuple[int, int, int, int]  # L, Hkv, Dk, Dv
_SHORT = 256  # slots: so few in each row are not worth a copy
_MOST_ADDED = 1024  # slots that growth adds at once, at most: what is not needed stays small


class KVCache(Cache):
    """Preallocated keys and values with one length per row, shared by all layers.

    It is a ``transformers.Cache`` by type, since models test for that, and takes nothing else from it. There is room
    for the rows of the storage for good; `drop` and `insert` change how many are held.

    Attributes:
        keys, values: of the rows that are held, [L, B, Hkv, S, Dk] and [L, B, Hkv, S, Dv].
        lengths: cached tokens of each row, on the host.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.layers = []
        self.num_layers = keys.shape[0]
        self._all_keys, self._all_values = keys, values
        self._fixed = False  # whether the capacity is one of few sizes
        self._aside: list[int] = []  # lengths of the last rows, while only the first ones are held
        self._hold([0] * keys.shape[1])

    @classmethod
    def new(cls, shape: KVShape, batch_size: int, capacity: int, like: Tensor) -> KVCache:
        """An empty cache with the dtype and device of `like`; when a run needs more slots they grow."""
        num_layers, heads, *dims = shape
        slots = (num_layers, batch_size, heads, max(capacity, 1))
        return cls(*(zeros((*slots, dim), like.dtype, like.device) for dim in dims))

    # -- one forward ---------------------------------------------------------------------------------------------

    def begin(self, num_tokens: int, after: int = 0) -> None:
        """Announce a forward of ``num_tokens`` tokens in every row; grows the cache if they do not fit.

        They follow, and may see, ``after`` tokens of forwards since the last ``keep`` or ``commit``: a draft runs the
        depths of its tree one after another.
        """
        start = self.length + after
        end = start + num_tokens
        if end > self.capacity:
            self._resize(max(end, self.capacity + min(self.capacity, _MOST_ADDED)))
        self._start, self._count, self._in_place = start, num_tokens, self.uniform
        self._read_keys = self.keys.narrow(3, 0, end).unbind(0)
        self._read_values = self.values.narrow(3, 0, end).unbind(0)
        self._write_keys = self.keys.narrow(3, start, num_tokens).unbind(0)
        self._write_values = self.values.narrow(3, start, num_tokens).unbind(0)

    def begin_fixed(self, num_tokens: int, room: int) -> None:
        """Announce a forward of N tokens, padding included, which a `FixedCache` over `storage` and `row_lengths` runs.

        It writes row b from ``lengths[b]`` on, `room` slots after the longest at most, and reads all slots. These
        grow here, to `fixed_capacity`, never inside the forward.
        """
        self._fixed = True
        capacity = fixed_capacity(self.length + room)
        if capacity > self.capacity or self.capacity != fixed_capacity(self.capacity):
            self._resize(max(capacity, self.capacity))
        self._close()
        self._count, self._in_place = num_tokens, True

    def row_lengths(self, rows: int) -> Tensor:
        """`lengths` as Long [rows] on the device, 0 for rows that are not held."""
        return on_device([*self.lengths, *[0] * (rows - self.batch_size)], self.keys.device)

    @property
    def storage(self) -> tuple[Tensor, Tensor]:
        """Keys [L, R, Hkv, S, Dk] and values [L, R, Hkv, S, Dv] of all R rows that there is room for."""
        return self._all_keys, self._all_values

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys [B, Hkv, N, Dk] and values [B, Hkv, N, Dv]; called by attention layers.

        Returns views [B, Hkv, S', Dk] and [B, Hkv, S', Dv] with S' = max(lengths) + N, after ``begin(N, after)`` with
        S' = max(lengths) + after + N.
        """
        assert key_states.shape[2] == self._count, "begin(n) must announce the tokens of every forward"
        self._write_keys[layer_idx].copy_(key_states)
        self._write_values[layer_idx].copy_(value_states)
        return self._read_keys[layer_idx], self._read_values[layer_idx]

    def attention_mask(self, ancestor_mask: Tensor) -> Tensor:
        """What each new token sees, its row's text and its own ancestors: Bool [B, 1, N, max(lengths) + columns].

        The ancestor mask, Bool [B, N, N], is True where the column is an ancestor of the row, or the row itself. With
        ``begin(N, after)`` it has ``after`` columns more, at the front.
        """
        if self.uniform:
            return pad(ancestor_mask, (self.length, 0), value=True).unsqueeze(1)
        device, length = ancestor_mask.device, self.length
        cached = torch.arange(length, device=device) < self.lengths_on_device[:, None, None]
        cached = cached.expand(-1, ancestor_mask.shape[1], -1)
        return torch.cat([cached, ancestor_mask], dim=-1).unsqueeze(1)

    def text(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """What one layer holds of the rows' texts between forwards.

        Returns keys [B, Hkv, S', Dk], values [B, Hkv, S', Dv] with S' = max(lengths), and Bool [B, 1, 1, S'], True
        where a row has text; None if all have.
        """
        length = self.length
        mask = None
        if not self.uniform:
            slots = torch.arange(length, device=self.keys.device)
            mask = (slots < self.lengths_on_device[:, None])[:, None, None]
        return self.keys[layer, :, :, :length], self.values[layer, :, :, :length], mask

    def causal_mask(self, num_tokens: int) -> Tensor:
        """``attention_mask`` for N tokens of plain text in every row: Bool [B, 1, N, S']."""
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=self.keys.device).tril()
        return self.attention_mask(causal.expand(self.batch_size, -1, -1))

    def positions(self, num_tokens: int) -> Tensor:
        """The places of the next N tokens of plain text: Long [B, N], from ``lengths[b]`` on."""
        steps = torch.arange(num_tokens, device=self.keys.device)
        if self.uniform:
            return (steps + self.length).expand(self.batch_size, -1)
        return self.lengths_on_device[:, None] + steps

    def slot_positions(self, positions: Tensor) -> Tensor:
        """The place in its row's text of every slot that a forward reads: Long [B, max(lengths) + N].

        `positions` Long [B, N] are those of the new tokens. Slots that hold no text of a row, which masks hide, get
        any.
        """
        cached = torch.arange(self.length, device=positions.device).expand(positions.shape[0], -1)
        return torch.cat([cached, positions], dim=1)

    # -- after the forward ---------------------------------------------------------------------------------------

    def keep(self, path: Tensor, counts: Sequence[int]) -> None:
        """Keep the accepted path of each row's tree and forget the other nodes.

        The path, Long [B, A], goes from the root (0) down; what follows a row's count, at most N, is not read.
        Nothing moves when the paths already lie where they belong; on a GPU this is not looked at, since the host
        would wait.
        """
        assert len(counts) == self.batch_size and max(counts) <= self._count
        width = max(counts)
        first = self._first_to_move(path, counts) if self.uniform else 0
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

    def crop(self, lengths: Sequence[int]) -> None:  # type: ignore[override]
        """Forget all but the first ``lengths[b]`` tokens of row b."""
        assert all(0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True))
        self.lengths = list(lengths)
        self._close()

    def drop(self, row: int) -> None:
        """Remove a row: the last row takes its place and the batch shrinks by one.

        Nothing else is copied, unless the texts that are left need a small part of the slots: then most are given back.
        """
        *lengths, length = self.lengths
        last = len(lengths)
        if row != last:
            self.keys[:, row, :, :length] = self.keys[:, last, :, :length]
            self.values[:, row, :, :length] = self.values[:, last, :, :length]
            lengths[row] = length
        self._hold(lengths)
        least = max(self.length, _SHORT)
        if self.length and self.capacity > 4 * least and not self._fixed:
            self._resize(2 * least)

    def insert(self, other: KVCache) -> None:
        """Take in the rows of another cache of the same kind behind the own ones; grows where there is no room."""
        first, length = self.batch_size, other.length
        rows = first + other.batch_size
        if length > self.capacity or rows > self._all_keys.shape[1]:
            self._resize(max(length, self.capacity), rows)
        self._hold([*self.lengths, *other.lengths])
        self.keys[:, first:, :, :length] = other.keys[..., :length, :]
        self.values[:, first:, :, :length] = other.values[..., :length, :]

    def row_bytes(self, length: int) -> int:
        """What `copy_row` of so many tokens takes."""
        return length * sum(tensor[:, :1, :, :1].nbytes for tensor in self.storage)

    def copy_row(self, row: int, length: int) -> KVCache:
        """The first tokens of a row as a cache of its own."""
        keys, values = (tensor[:, row : row + 1, :, :length].clone() for tensor in (self.keys, self.values))
        copied = KVCache(keys, values)
        copied.lengths = [length]
        return copied

    def fill_row(self, row: int, other: KVCache, length: int) -> None:
        """Take the first tokens of another cache's only row for those of an empty row."""
        assert self.lengths[row] == 0 and length <= other.length
        if length > self.capacity:
            self._resize(length)
        self.keys[:, row, :, :length] = other.keys[:, 0, :, :length]
        self.values[:, row, :, :length] = other.values[:, 0, :, :length]
        self.lengths[row] = length
        self._close()

    @contextmanager
    def first_rows(self, rows: int) -> Iterator[None]:
        """Hold no other rows inside the block: the others have no part in its forwards."""
        self._aside = self.lengths[rows:]
        self._hold(self.lengths[:rows])
        try:
            yield
        finally:
            lengths, self._aside = [*self.lengths, *self._aside], []
            self._hold(lengths)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """B, rows still held."""
        return len(self.lengths)

    @property
    def capacity(self) -> int:
        """S, slots per row."""
        return self.keys.shape[3]

    @property
    def length(self) -> int:
        """Cached tokens of the longest row, 0 when no row is left."""
        return max(self.lengths, default=0)

    @property
    def uniform(self) -> bool:
        """Whether all rows have the same length."""
        return self.lengths.count(self.lengths[0]) == len(self.lengths) if self.lengths else True

    @property
    def lengths_on_device(self) -> Tensor:
        """Return `lengths` as Long [B]: one transfer per decoding step, for which the host need not wait."""
        if self._device_lengths is None:
            self._device_lengths = on_device(self.lengths, self.keys.device)
        return self._device_lengths

    # -- what unpatched models of transformers ask ---------------------------------------------------------------

    def __len__(self) -> int:
        return self.num_layers

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots before those of the current forward."""
        return self.length

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int = 0) -> tuple[int, int]:
        """(width of the mask, offset of its first column); older releases pass the positions, not their number."""
        new = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.length + new, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: no limit, the cache grows."""
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

    # -- inside --------------------------------------------------------------------------------------------------

    def _hold(self, lengths: list[int]) -> None:
        """Hold the first rows, with so much text in each."""
        self.lengths = lengths
        self.keys, self.values = self._all_keys[:, : len(lengths)], self._all_values[:, : len(lengths)]
        self._close()

    def _close(self) -> None:
        self._device_lengths: Tensor | None = None
        self._start, self._count, self._in_place = 0, 0, False
        self._read_keys = self._read_values = self._write_keys = self._write_values = ()

    def _advance(self, counts: Sequence[int]) -> None:
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self._close()

    def _resize(self, capacity: int, rows: int = 0) -> None:
        """Make so many slots of each row, and so many rows and some more if there are fewer."""
        held, present = self.batch_size + len(self._aside), self._all_keys.shape[1]
        rows = present if rows <= present else power_of_two(rows)
        capacity = fixed_capacity(capacity) if self._fixed else capacity
        self._all_keys = resized(self._all_keys, rows, capacity, held)
        self._all_values = resized(self._all_values, rows, capacity, held)
        self._hold(self.lengths)

    def _first_to_move(self, path: Tensor, counts: Sequence[int]) -> int:
        """Smallest depth at which a path node is not in its final slot; max(counts) if there is none."""
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
            for storage in (self.keys, self.values):
                storage.narrow(3, self.length + offset, width).copy_(gathered(storage, sources))
            return
        sources = nodes + (self.lengths_on_device[:, None] if self._in_place else self._start)
        rows = torch.arange(self.batch_size, device=device)[:, None]
        targets = self.positions(offset + width)[:, offset:]
        for storage in (self.keys, self.values):
            storage[:, rows, :, targets] = storage[:, rows, :, sources]
