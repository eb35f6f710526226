"""Keys and values of several texts, one row each, with rows that join and leave, and storage that grows.

Shapes: B rows in use, R rows of the storage, L layers, S slots, Hkv key-value heads, Dk / Dv their widths, D either
width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

KVShape = tuple[int, int, int, int]  # L, Hkv, Dk, Dv
_MAX_ADDED = 1024  # the most slots that growth adds at once, so that little memory stays unused
_LEAST_FIXED = 256  # the fewest slots of a cache for forward passes of fixed shape


class RowStore:
    """Preallocated keys and values of the texts in a batch, with one length per row that all layers share.

    Row b owns the slots ``0 .. lengths[b] - 1``; the contents of later slots are arbitrary. The memory for R rows
    stays; `drop` and `insert` change how many of them are in use.

    Args:
        storage: keys [L, R, Hkv, S, Dk] and values [L, R, Hkv, S, Dv]; optionally the tokens of the texts, Long
            [1, R, 1, S, 1].

    Attributes:
        lengths: tokens of each row, on the host.
        short: slots per row at which freeing slots is not worth a copy.
    """

    short = 256

    def __init__(self, *storage: Tensor) -> None:
        self.storage = storage  # with all rows, in use or not
        self._fixed = False  # if True, S is one of a few sizes (`fixed_capacity`) and never falls
        self._aside: list[int] = []  # the lengths of the other rows, inside `first_rows`
        self._use_rows([0] * storage[0].shape[1])

    @classmethod
    def new(cls, shape: KVShape, batch_size: int, capacity: int, like: Tensor, tokens: bool = False) -> Self:
        """Return a store for B empty texts, with the dtype and device of `like`; it grows when it needs more slots.

        With `tokens` it also stores the tokens of the texts.
        """
        num_layers, heads, *dims = shape
        slots = max(capacity, 1)
        storage = [
            zeros((num_layers, batch_size, heads, slots, dim), like.dtype, like.device) for dim in dims
        ]
        if tokens:
            storage.append(zeros((1, batch_size, 1, slots, 1), torch.long, like.device))
        return cls(*storage)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> Tensor:
        """Return the keys [L, B, Hkv, S, Dk] of the rows in use."""
        return self.used[0]

    @property
    def values(self) -> Tensor:
        """Return the values [L, B, Hkv, S, Dv] of the rows in use."""
        return self.used[1]

    @property
    def tokens(self) -> Tensor:
        """Return the stored tokens of the rows in use, Long [B, S]."""
        return self.used[2][0, :, 0, :, 0]

    @property
    def batch_size(self) -> int:
        """Return B."""
        return len(self.lengths)

    @property
    def capacity(self) -> int:
        """Return S."""
        return self.keys.shape[3]

    @property
    def length(self) -> int:
        """Return the number of tokens of the longest row, 0 if there is no row."""
        return max(self.lengths, default=0)

    @property
    def uniform(self) -> bool:
        """Return True if all rows have the same length."""
        return self.lengths.count(self.lengths[0]) == len(self.lengths) if self.lengths else True

    @property
    def lengths_on_device(self) -> Tensor:
        """Return `lengths` as Long [B]: one asynchronous transfer per decoding step."""
        if self._device_lengths is None:
            self._device_lengths = on_device(self.lengths, self.keys.device)
        return self._device_lengths

    def row_lengths(self, rows: int) -> Tensor:
        """Return `lengths` as Long [rows] on the device, 0 for rows that are not in use."""
        return on_device([*self.lengths, *[0] * (rows - self.batch_size)], self.keys.device)

    def row_bytes(self, length: int) -> int:
        """Return the memory that `copy_row` of `length` tokens needs, in bytes."""
        return length * sum(tensor[:, :1, :, :1].nbytes for tensor in self.storage)

    # -- rows ----------------------------------------------------------------------------------------------------

    def crop(self, lengths: Sequence[int]) -> None:
        """Forget all but the first ``lengths[b]`` tokens of row b."""
        assert all(0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True))
        self.lengths = list(lengths)
        self._close()

    def drop(self, row: int) -> None:
        """Remove a row: the last row moves to its place, and B falls by one.

        Nothing else is copied, unless the remaining texts need only a small part of the slots: then most are freed.
        """
        *lengths, length = self.lengths
        last = len(lengths)
        if row != last:
            for tensor in self.used:
                tensor[:, row, :, :length] = tensor[:, last, :, :length]
            lengths[row] = length
        self._use_rows(lengths)
        least = max(self.length, self.short)
        if self.length and self.capacity > 4 * least and not self._fixed:
            self._resize(2 * least)

    def clear(self, row: int, start: int = 0) -> None:
        """Write zeros over a row from slot `start` on, because attention multiplies even hidden NaN values by 0."""
        for tensor in self.used:
            tensor[:, row, :, start:] = 0

    def insert(self, other: Self) -> None:
        """Add the rows of another store of the same shape after the present rows; grow if there is no room."""
        first, length = self.batch_size, other.length
        rows = first + other.batch_size
        if length > self.capacity or rows > self.storage[0].shape[1]:
            self._resize(max(length, self.capacity), rows)
        self._use_rows([*self.lengths, *other.lengths])
        for tensor, others in zip(self.used, other.used, strict=True):
            tensor[:, first:, :, :length] = others[..., :length, :]

    def copy_row(self, row: int, length: int) -> Self:
        """Return a copy of the first `length` tokens of a row, as a store of one row."""
        copied = type(self)(*(tensor[:, row : row + 1, :, :length].clone() for tensor in self.used))
        copied.lengths = [length]
        return copied

    def fill_row(self, row: int, other: Self, length: int) -> None:
        """Copy the first `length` tokens of another store's only row to an empty row."""
        assert self.lengths[row] == 0 and length <= other.length
        if length > self.capacity:
            self._resize(length)
        for tensor, others in zip(self.used, other.used, strict=True):
            tensor[:, row, :, :length] = others[:, 0, :, :length]
        self.lengths[row] = length
        self._close()

    @contextmanager
    def first_rows(self, rows: int) -> Iterator[None]:
        """Use only the first rows inside a ``with`` block: forward passes leave the others out."""
        self._aside = self.lengths[rows:]
        self._use_rows(self.lengths[:rows])
        try:
            yield
        finally:
            lengths, self._aside = [*self.lengths, *self._aside], []
            self._use_rows(lengths)

    # -- storage -------------------------------------------------------------------------------------------------

    def _use_rows(self, lengths: list[int]) -> None:
        """Use the first rows, one for each of these lengths."""
        self.lengths = lengths
        self.used = tuple(tensor[:, : len(lengths)] for tensor in self.storage)
        self._close()

    def _close(self) -> None:
        """Forget values derived from the lengths or the storage, because one of these has changed."""
        self._device_lengths: Tensor | None = None

    def _grow(self, capacity: int) -> None:
        """Make room for `capacity` slots in each row, and some more."""
        self._resize(max(capacity, self.capacity + min(self.capacity, _MAX_ADDED)))

    def _fix(self, capacity: int) -> None:
        """Make room for `capacity` slots, and from now on use only the sizes of `fixed_capacity`."""
        self._fixed = True
        capacity = fixed_capacity(capacity)
        if capacity > self.capacity or self.capacity != fixed_capacity(self.capacity):
            self._resize(max(capacity, self.capacity))

    def _resize(self, capacity: int, rows: int = 0) -> None:
        """Change S to `capacity`, and raise R to a power of two if it is less than `rows`."""
        used, present = self.batch_size + len(self._aside), self.storage[0].shape[1]
        rows = present if rows <= present else power_of_two(rows)
        capacity = fixed_capacity(capacity) if self._fixed else capacity
        self.storage = tuple(_resized(tensor, rows, capacity, used) for tensor in self.storage)
        self._use_rows(self.lengths)


class CachedRows:
    """The rows of a session whose only state is a `KVCache`."""

    cache: Any  # a `KVCache`, or for compiled steps an object with the same members

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def crop(self, lengths: Sequence[int]) -> None:
        self.cache.crop(lengths)

    def drop(self, row: int) -> None:
        self.cache.drop(row)

    def clear(self, row: int, start: int = 0) -> None:
        self.cache.clear(row, start)

    def insert(self, other: Self) -> None:
        self.cache.insert(other.cache)

    def first_rows(self, rows: int) -> AbstractContextManager[None]:
        return self.cache.first_rows(rows)

    def copy_row(self, row: int, length: int) -> Self:
        return self.over(self.cache.copy_row(row, length))

    def fill_row(self, row: int, other: Self, length: int) -> None:
        self.cache.fill_row(row, other.cache, length)

    def row_bytes(self, length: int) -> int:
        return self.cache.row_bytes(length)

    def over(self, cache: Any) -> Self:
        """Return a session like this one over another cache, before its next commit."""
        raise NotImplementedError


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return numbers as Long [n] on a device, by an asynchronous transfer."""
    pinned = device.type == "cuda"
    on_host = torch.tensor(numbers, dtype=torch.long, device="cpu", pin_memory=pinned)
    return on_host.to(device, non_blocking=pinned)


def fixed_capacity(slots: int) -> int:
    """Return the slots of a cache for forward passes of fixed shape: a power of two, at least `slots` and 256.

    >>> fixed_capacity(7), fixed_capacity(256), fixed_capacity(257)
    (256, 256, 512)
    """
    return power_of_two(max(slots, _LEAST_FIXED))


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`, a number above 0."""
    return 1 << (count - 1).bit_length()


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return zeros, because attention multiplies hidden slots by 0; usable inside and outside of inference mode."""
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=dtype, device=device)


def _resized(storage: Tensor, rows: int, capacity: int, used: int) -> Tensor:
    """Return storage [L, R, Hkv, S, D] with other R and S.

    All slots of the used rows that fit are copied, even those behind the texts, because a tree may be growing there.
    """
    layers, _, heads, slots, width = storage.shape
    made = zeros((layers, rows, heads, capacity, width), storage.dtype, storage.device)
    kept = min(slots, capacity)
    made[:, :used, :, :kept] = storage[:, :used, :, :kept]
    return made
