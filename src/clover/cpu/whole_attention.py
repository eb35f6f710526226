"""Attention of whole numbers: every sum is exact, so a token's result has the same bits wherever the token stands.

The result of a floating sum depends on its order, and the order on how many rows are computed together and on where
keys lie in the cache. Here queries have eight bits, keys fifteen and values eight, and their products are added as
int32. Exponentials are rounded to whole numbers before they are added. Between the sums stand operators on single
elements, and maxima, which have no order either. Slots that a token does not see have exactly the weight zero.
docs/lossless.md has the proof.

Shapes: B batch, Q query heads, G key-value heads, R = Q / G, N new tokens, S slots, C and D widths of keys and values,
P pairs of a text and a key-value head, n tokens of one block, E slots of one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from clover.cache.whole import MOST, SHIFT, WholeCache, WholeTexts, whole_rows
from clover.cpu.attention import OfLastMask, choose_attention

_NAME = "clover_whole"
_BLOCK = 2**18  # scores that are computed at once, so that they stay in the processor's cache
_TOP = (
    15000  # the largest exponential as a whole number: 1,024 of them are below 2^24, where float32 is exact
)
_SUMMED = 1024
_PLANE = 256  # one in the high plane of a weight stands for as many in the low plane
_MOST = MOST * _PLANE  # the largest weight of a value
_LEAST = 1e-30


def attend_exactly(module: nn.Module) -> None:
    """Make the transformers models in a module attend in this way, if their classes accept another attention."""
    choose_attention(module, _NAME, _attention)


@dataclass
class _Seen:
    """What the tokens of one forward pass see of `width` slots.

    `unseen` is Bool [P or 1, R or 1, N, width], None if all slots are seen; `bias` of the same shape is added to the
    scores. No token is kept from slots before `first`.
    """

    width: int
    unseen: Tensor | None = None
    bias: Tensor | None = None
    first: int = 0
    ends: dict[tuple[int, int], int] = field(default_factory=dict)

    def end(self, start: int, stop: int) -> int:
        """Return how many slots some of the tokens from `start` to `stop` see: no block reads more."""
        if self.unseen is None or stop - start == self.unseen.shape[2]:
            return self.width
        if (start, stop) not in self.ends:
            seen = ~self.unseen[:, :, start:stop].flatten(0, 2).all(0)
            self.ends[start, stop] = self.width - int(seen.flip(0).long().argmax())
        return self.ends[start, stop]

    def hide(self, scores: Tensor, pairs: slice, tokens: slice) -> None:
        """Set scores [P, R, n, E] of slots that are not seen to -inf."""
        width = min(self.width, scores.shape[-1])
        if self.bias is not None:
            scores[..., :width].add_(_part(self.bias, pairs, tokens)[..., :width])
        if self.unseen is not None and self.first < width:
            hidden = _part(self.unseen, pairs, tokens)[..., self.first : width]
            scores[..., self.first : width].masked_fill_(hidden, -torch.inf)
        scores[..., width:].fill_(-torch.inf)


def _part(mask: Tensor, pairs: slice, tokens: slice) -> Tensor:
    return (mask if mask.shape[0] == 1 else mask[pairs])[:, :, tokens]


def attend(
    query: Tensor, texts: WholeTexts, seen: _Seen, scale: float, softcap: float | None = None
) -> Tensor:
    """Return the attention [B, N, Q, D], in the dtype of the query [B, Q, N, C], over texts with S slots."""
    batch, heads, count, width = query.shape
    groups, slots = texts.high.shape[1:3]
    rows, row_scales = whole_rows(query)
    rows = rows.to(torch.int8).reshape(batch * groups, -1, count, width)
    row_scales = row_scales.mul_(scale).reshape(*rows.shape[:3], 1)
    flat = [part.flatten(0, 1) for part in (texts.high, texts.low, texts.values)]
    scales = [part.reshape(batch * groups, 1, 1, slots) for part in (texts.key_scales, texts.value_scales)]
    found = query.new_empty(batch * groups, heads // groups, count, texts.values.shape[-1])
    for pairs, tokens in _blocks(rows.shape[0], rows.shape[1], count, slots):
        end = min(WholeCache.padded(seen.end(tokens.start, tokens.stop)), slots)
        high, low, values = (part[pairs, :end] for part in flat)
        key_scales, value_scales = (part[pairs, ..., :end] for part in scales)
        scores = (
            _scores(rows[pairs, :, tokens], high, low).mul_(key_scales).mul_(row_scales[pairs, :, tokens])
        )
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
        seen.hide(scores, pairs, tokens)
        found[pairs, :, tokens] = _weighted(scores, values, value_scales).to(query.dtype)
    return found.view(batch, heads, count, -1).transpose(1, 2).contiguous()


def _blocks(pairs: int, group: int, count: int, slots: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of pairs and tokens that have about `_BLOCK` scores each."""
    tokens = min(count, max(1, _BLOCK // (group * slots)))
    together = max(1, _BLOCK // (group * slots * count))
    for pair in range(0, pairs, together):
        for token in range(0, count, tokens):
            yield slice(pair, min(pair + together, pairs)), slice(token, min(token + tokens, count))


@lru_cache(maxsize=1)
def _products_are_exact() -> bool:
    """Return True if this processor adds products of int8 exactly; AVX2 without VNNI does not."""
    left, right, products = trial(48, 48, 999)
    return all(torch.equal(torch._int_mm(left[:rows], right.T), products[:rows].int()) for rows in (1, 6, 48))


def trial(rows: int, columns: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return int8 [rows, width] and [columns, width], random and the largest there are, and their products, float64."""
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randint(-MOST, MOST + 1, (count, width), generator=generator, dtype=torch.int8)
        for count in (rows, columns)
    )
    left[0], left[1], right[0], right[1] = MOST, -MOST, MOST, -MOST
    return left, right, left.double() @ right.double().T


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the exact product int32 of two matrices of int8."""
    if _products_are_exact():
        return torch._int_mm(left, right)
    return (left.double() @ right.double()).to(torch.int32)


def _scores(rows: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Return the sums of products float32 [P, R, n, E] of rows int8 [P, R, n, C] and keys int8 [P, E, C]."""
    flat = rows.reshape(len(rows), -1, rows.shape[-1])
    sums = torch.empty(2, *flat.shape[:2], high.shape[1], dtype=torch.int32)
    for pair in range(len(rows)):
        sums[0, pair] = _product(flat[pair], high[pair].T)
        sums[1, pair] = _product(flat[pair], low[pair].T)
    whole = torch.add(sums[1], sums[0], alpha=SHIFT, out=sums[1])
    return whole.to(torch.float32).view(*rows.shape[:3], -1)


def _weighted(scores: Tensor, values: Tensor, value_scales: Tensor) -> Tensor:
    """Return the means float32 [P, R, n, D] of values int8 [P, E, D], weighted by the softmax of scores; uses them up.

    A weight has fifteen bits below the largest of its row, which texts with a first token that takes most of the weight
    need.
    """
    top = scores.amax(-1, keepdim=True).sub_(log(_TOP))
    weights = scores.sub_(top).exp_().round_()
    total = _total(weights)
    most = weights.mul_(value_scales).amax(-1, keepdim=True)
    fine = weights.mul_(_MOST / most.clamp_min(_LEAST)).round_().to(torch.int16)
    planes = torch.empty(len(fine), 2, *fine.shape[1:], dtype=torch.int8)
    planes[:, 1].copy_(fine)  # keeps the lower eight bits, as a number from -128 to 127
    planes[:, 0].copy_(fine.add_(_PLANE // 2).bitwise_right_shift_(8))
    sums = torch.stack([_product(*pair) for pair in zip(planes.flatten(1, 3), values, strict=True)])
    high, low = sums.to(torch.float32).view(*planes.shape[:-1], -1).unbind(1)
    return torch.add(low, high, alpha=_PLANE).mul_((most.double() / (total * _MOST)).float())


def _total(weights: Tensor) -> Tensor:
    """Return the exact sums float64 [..., 1] of whole numbers [..., E]."""
    sums = [part.sum(-1, keepdim=True).double() for part in weights.split(_SUMMED, dim=-1)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


_seen = OfLastMask()


def _read_mask(mask: Tensor | None, query: Tensor, groups: int, count: int, causal: bool) -> _Seen:
    """Return what a mask [B or 1, Q or 1, N, S] says, Bool or added to the scores; without one, text is causal."""
    if mask is None:
        tokens = query.shape[2]
        return _causal(tokens) if causal and tokens > 1 else _Seen(count)
    heads = query.shape[1]
    return _seen.get(mask, (heads, groups), lambda: _seen_by(mask, heads, groups))


@lru_cache(maxsize=2)
def _causal(tokens: int) -> _Seen:
    return _Seen(tokens, torch.ones(1, 1, tokens, tokens, dtype=torch.bool).triu_(1), first=1)


def _seen_by(mask: Tensor, heads: int, groups: int) -> _Seen:
    batch, per_head, _, width = mask.shape
    group = heads // groups if per_head > 1 else 1
    mask = mask.expand(-1, groups * group, -1, -1) if batch > 1 or per_head > 1 else mask
    mask = mask.reshape(-1, group, *mask.shape[2:])  # by pairs
    if mask.dtype == torch.bool:
        unseen, bias = ~mask, None
    else:
        unseen = mask < torch.finfo(mask.dtype).min / 2
        added = mask.masked_fill(unseen, 0.0)
        bias = added.to(torch.float32) if bool(added.any()) else None
    kept = unseen.flatten(0, 2).any(0)
    first = int(kept.long().argmax()) if bool(kept.any()) else width
    return _Seen(width, unseen, bias, first)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend for a model, which expects [B, N, Q, D]; keys and values are tensors, or what `WholeCache` returns."""
    assert options.get("s_aux") is None and position_bias is None, "an attention that has not been seen"
    if torch.is_grad_enabled() and isinstance(key, Tensor):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    texts = key if isinstance(key, WholeTexts) else WholeTexts.of(key, value)
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    seen = _read_mask(attention_mask, query, texts.high.shape[1], texts.count, causal)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, texts, seen, scale, softcap), None
