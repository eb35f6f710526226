"""Keys and values as whole numbers, for attention whose sums are exact in any order.

A key has fifteen bits, in two planes of int8, because the keys of some models have a large part that all tokens share.
A value has eight bits. Every key and every value of a head has its own scale, so that the stored numbers of a token
depend only on this token.

Shapes: B batch, L layers, G key-value heads, T heads that are stored side by side, K = G / T, S slots, N new tokens,
Dk / Dv widths of keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from clover.cache.kv import KVCache
from clover.cache.rows import KVShape, zeros

MOST = 127  # the largest number of eight bits whose negative has eight bits, too
SHIFT = 128  # the value of one in the high plane of a number of fifteen bits
LEAST = 1e-30  # the smallest divisor


@dataclass(frozen=True)
class WholeTexts:
    """The keys and values that one layer reads.

    The numbers of T heads are side by side in each slot, so that one product reads all of them.

    Attributes:
        keys: int8 [B, K, S, 2 T Dk], the high plane of T heads and then the low one: a key is its scale times
            ``128 * high + low``.
        values: int8 [B, K, S, T Dv].
        key_scales, value_scales: float32 [B, G, S].
        count: how many slots are part of the forward pass; the contents of later slots are arbitrary.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor
    count: int

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> Self:
        """Return keys [B, G, S, Dk] and values [B, G, S, Dv] of any floating dtype as whole numbers."""
        return cls.made_of(_stored(keys, values), keys.shape[2])

    @classmethod
    def made_of(cls, stored: Iterable[Tensor], count: int) -> Self:
        """Return the texts with these stored tensors, in the order of the fields, with scales [B, G, S, 1]."""
        keys, values, *scales = stored
        return cls(keys, values, *(scale.squeeze(-1) for scale in scales), count=count)


def _together(heads: int) -> int:
    """Return T, at most 4: with few rows a product of several heads takes no longer than a product of one."""
    return next(count for count in (4, 3, 2, 1) if heads % count == 0)


def whole_rows(rows: Tensor, most: int = MOST) -> tuple[Tensor, Tensor]:
    """Round rows [..., D] to whole numbers up to `most`; float32, with float32 scales [..., 1].

    A row that is not finite has the scale 0, so that the numbers of other tokens stay finite.
    """
    exact = rows.to(torch.float32)
    scales = exact.abs().amax(-1, keepdim=True).div_(most)
    whole = exact.div(scales.clamp_min(LEAST)).round_()
    return whole, scales.nan_to_num_(0.0, 0.0, 0.0)


def _stored(keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors to store for keys [B, G, N, Dk] and values [B, G, N, Dv]; scales are [B, G, N, 1]."""
    fine, key_scales = whole_rows(keys, MOST * SHIFT)
    whole, value_scales = whole_rows(values)
    high = fine.div(SHIFT).round_()
    low = fine.sub_(high, alpha=SHIFT)
    planes = _side_by_side(high), _side_by_side(low)
    return torch.cat(planes, dim=-1), _side_by_side(whole), key_scales, value_scales


def _side_by_side(whole: Tensor) -> Tensor:
    """Return whole numbers [B, G, N, D] as int8 [B, K, N, T D]."""
    heads = whole.to(torch.int8).unflatten(1, (-1, _together(whole.shape[1])))
    return heads.transpose(2, 3).flatten(3)


class WholeCache(KVCache):
    """A `KVCache` of `WholeTexts`: keys and values are rounded once, when they are stored.

    Args:
        storage: the numbers and scales in the order of `WholeTexts`, [L, R, K, S, 2 T Dk], [L, R, K, S, T Dv], and
            twice [L, R, G, S, 1].
    """

    # Multiples of this size give faster products, and only few sizes that must be prepared.
    _of_layers, _multiple = 4, 64

    @classmethod
    def new(cls, shape: KVShape, batch_size: int, capacity: int, like: Tensor, tokens: bool = False) -> Self:
        """Return a cache for B empty texts on the device of `like`; it grows when it needs more slots."""
        assert not tokens
        num_layers, heads, key_width, value_width = shape
        slots, together = cls.padded(max(capacity, 1)), _together(heads)
        kinds = [(heads // together, together * width, torch.int8) for width in (2 * key_width, value_width)]
        kinds += [(heads, 1, torch.float32)] * 2
        return cls(
            *(
                zeros((num_layers, batch_size, count, slots, width), dtype, like.device)
                for count, width, dtype in kinds
            )
        )

    def begin(self, num_tokens: int, after: int = 0) -> None:
        """Announce a forward pass of N tokens in every row; each row's tokens are written right after its text."""
        assert not after
        super().begin(num_tokens)
        self._in_place = True
        rows = torch.arange(self.batch_size, device=self.keys.device)[:, None]
        self._places = None if self.uniform else (rows, slice(None), self.positions(num_tokens))

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[WholeTexts, WholeTexts]:
        """Store one layer's new keys [B, G, N, Dk] and values [B, G, N, Dv]; called by attention layers.

        Return all keys and values, twice, because layers pass on one object for keys and one for values. The number of
        slots is a multiple of 64.
        """
        assert key_states.shape[2] == self._count, "begin(n) must announce the tokens of every forward"
        stored = _stored(key_states, value_states)
        if self._places is None:
            for written, part in zip(self._writes, stored, strict=True):
                written[layer_idx].copy_(part)
        else:
            for storage, part in zip(self.used, stored, strict=True):
                storage[layer_idx][self._places] = part.transpose(1, 2)
        texts = WholeTexts.made_of((part[layer_idx] for part in self._reads), self._start + self._count)
        return texts, texts

    def attention_mask(self, ancestor_mask: Tensor) -> Tensor:
        """Return the slots that each new token sees: Bool [B, 1, N, S']; a row's nodes follow its own text."""
        if self.uniform:
            return super().attention_mask(ancestor_mask)
        count = ancestor_mask.shape[1]
        slots = torch.arange(self.length + count, device=ancestor_mask.device)
        nodes = (slots - self.lengths_on_device[:, None])[:, None].expand(-1, count, -1)
        ancestors = ancestor_mask.gather(2, nodes.clamp(0, count - 1)) & (nodes < count)
        return (ancestors | (nodes < 0)).unsqueeze(1)

    def slot_positions(self, positions: Tensor) -> Tensor:
        """Return the position of every slot that a forward pass reads: Long [B, max(lengths) + N]."""
        if self.uniform:
            return super().slot_positions(positions)
        count = positions.shape[1]
        slots = torch.arange(self.length + count, device=positions.device).repeat(len(positions), 1)
        return slots.scatter_(1, self.positions(count), positions)
