"""Attention of whole numbers: every sum is exact, so a token's result has the same bits at any place.

The result of a floating-point sum depends on its order. The order depends on the number of rows that are computed
together, and on the places of keys in the cache. Here queries have eight bits, keys fifteen and values eight, and their
products are added as int32. Exponentials are rounded to whole numbers before they are added. The only operators between
the sums are elementwise, or maxima, which do not depend on an order. Slots that a token does not see have exactly the
weight zero. docs/lossless.md has the proof.

Shapes: B batch, Q query heads, G key-value heads, R = Q / G, N new tokens, S slots, C and D widths of keys and values,
P pairs of a text and a key-value head, n tokens of one block, E slots of one block; T heads whose keys and values are
stored together, K = G / T.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from clover.cache.whole import LEAST, MOST, SHIFT, WholeCache, WholeTexts, whole_rows
from clover.cpu.attention import OfLastMask, choose_attention

_NAME = "clover_whole"
_BLOCK = 2**18  # scores that are computed at once, so that they fit the processor's cache
# The largest exponential as a whole number. The sum of 1,024 of them is below 2^24, where float32 is exact.
_TOP = 15000
_SUMMED = 1024
_PLANE = 256  # a weight is 256 times its high plane plus its low plane
_MOST = MOST * _PLANE  # the largest weight of a value
_FEW = 32  # with more rows, a product of several heads at once is slower


def attend_exactly(module: nn.Module) -> None:
    """Let the transformers models in a module use this attention, if their classes accept another one."""
    choose_attention(module, _NAME, _attention)


@dataclass
class _Seen:
    """The slots, out of `width`, that the tokens of one forward pass see.

    `unseen` is Bool [P or 1, R or 1, N, width]; None if all slots are seen. `bias` of the same shape is added to the
    scores. All tokens see the slots before `first`. `order` sorts the texts, those that see fewer slots first; None if
    they keep their order. The masks are in this order.
    """

    width: int
    unseen: Tensor | None = None
    bias: Tensor | None = None
    first: int = 0
    order: Tensor | None = None
    ends: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def end(self, pairs: slice, tokens: slice) -> int:
        """Return the number of slots that a block of these tokens must read."""
        if self.unseen is None:
            return self.width
        place = pairs.start if self.unseen.shape[0] > 1 else 0, tokens.start, tokens.stop
        if place not in self.ends:
            seen = ~_part(self.unseen, pairs, tokens).flatten(0, 2).all(0)
            self.ends[place] = self.width - int(seen.flip(0).long().argmax())
        return self.ends[place]

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
    groups, parts = texts.key_scales.shape[1], texts.keys.shape[1]
    together, order = groups // parts, seen.order
    rows, row_scales = whole_rows(query if order is None else query[order])
    rows = rows.to(torch.int8).reshape(batch * parts, together, -1, count, width)
    row_scales = row_scales.mul_(scale).view(batch * groups, -1, count, 1)
    keys, values = (_in_order(part, order) for part in (texts.keys, texts.values))
    scales = [part if order is None else part[order] for part in (texts.key_scales, texts.value_scales)]
    scales = [part.reshape(batch * groups, 1, 1, -1) for part in scales]
    slots = len(keys[0])
    found = query.new_empty(batch * groups, heads // groups, count, values[0].shape[-1] // together)
    for part, tokens in _blocks(len(rows), heads // parts, count, slots):
        pairs = slice(part.start * together, part.stop * together)
        end = min(WholeCache.padded(seen.end(pairs, tokens)), slots)
        key_scales, value_scales = (each[pairs, ..., :end] for each in scales)
        scores = _scores(rows[part, :, :, tokens], [one[:end] for one in keys[part]])
        scores.mul_(key_scales).mul_(row_scales[pairs, :, tokens])
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
        seen.hide(scores, pairs, tokens)
        found[pairs, :, tokens] = _weighted(scores, [one[:end] for one in values[part]], value_scales)
    found = found.view(batch, heads, count, -1)
    if order is not None:
        found = torch.empty_like(found).index_copy_(0, order, found)
    return found.transpose(1, 2).contiguous()


def _in_order(stored: Tensor, order: Tensor | None) -> list[Tensor]:
    """Return views [S, .] of stored keys or values [B, K, S, .], text by text."""
    texts = stored.flatten(0, 1).unbind(0)
    if order is None:
        return list(texts)
    parts = stored.shape[1]
    return [texts[text * parts + part] for text in order.tolist() for part in range(parts)]


def _blocks(parts: int, group: int, count: int, slots: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of parts and tokens with about `_BLOCK` scores each; a part has `group` query heads."""
    tokens = min(count, max(1, _BLOCK // (group * slots)))
    together = max(1, _BLOCK // (group * slots * count))
    for part in range(0, parts, together):
        for token in range(0, count, tokens):
            yield slice(part, min(part + together, parts)), slice(token, min(token + tokens, count))


@lru_cache(maxsize=1)
def products_are_exact() -> bool:
    """Return True if this processor adds products of int8 exactly. AVX2 without VNNI does not."""
    left, right, products = trial(48, 48, 999)
    return all(torch.equal(torch._int_mm(left[:rows], right.T), products[:rows].int()) for rows in (1, 6, 48))


def trial(rows: int, columns: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return int8 matrices [rows, width] and [columns, width] with random and extreme numbers, and their product."""
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randint(-MOST, MOST + 1, (count, width), generator=generator, dtype=torch.int8, device="cpu")
        for count in (rows, columns)
    )
    left[0], left[1], right[0], right[1] = MOST, -MOST, MOST, -MOST
    return left, right, left.double() @ right.double().T


def _multiply(lefts: Iterable[Tensor], rights: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
    """Write the exact int32 products of pairs of int8 matrices into outputs."""
    exact = products_are_exact()
    for left, right, output in zip(lefts, rights, outputs, strict=True):
        if exact:
            torch._int_mm(left, right, out=output)
        else:
            output.copy_(left.double() @ right.double())


def _scores(rows: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """Return the scores float32 [P, R, n, E] of rows int8 [P / T, T, R, n, C] and P / T keys [E, 2 T C].

    With few rows, heads that are stored together share one product. Each row has zeros at the keys of other heads.
    """
    parts, together, group, count, width = rows.shape
    heads, slots = rows.reshape(parts, together, group * count, width), len(keys[0])
    lines = [one.view(2 * slots, -1).T for one in keys]
    sums = rows.new_empty(parts * together, group * count, 2 * slots, dtype=torch.int32)
    if together * group * count <= _FEW:
        apart = heads.new_zeros(parts, together, group * count, together, width)
        apart.diagonal(dim1=1, dim2=3).copy_(heads.permute(0, 2, 3, 1))
        apart = apart.view(parts, together * group * count, together * width)
        _multiply(apart, lines, sums.view(parts, -1, 2 * slots))
    else:
        _multiply(heads.flatten(0, 1), (head for line in lines for head in line.split(width)), sums)
    high, low = sums.view(parts * together, group, count, slots, 2).unbind(-1)
    return torch.add(low, high, alpha=SHIFT).to(torch.float32)


def _values_of(planes: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Return the products int32 [P, M, D] of planes int8 [P, M, E] and P / T values int8 [E, T D]."""
    (pairs, rows, slots), parts = planes.shape, len(values)
    together = pairs // parts
    width = values[0].shape[1] // together
    if together * rows > 2 * _FEW:
        sums = planes.new_empty(pairs, rows, width, dtype=torch.int32)
        _multiply(planes, (head for one in values for head in one.split(width, 1)), sums)
        return sums
    sums = planes.new_empty(parts, together * rows, together * width, dtype=torch.int32)
    _multiply(planes.view(parts, -1, slots), values, sums)
    own = sums.view(parts, together, rows, together, width).diagonal(dim1=1, dim2=3)
    return own.permute(0, 3, 1, 2).reshape(pairs, rows, width)


def _weighted(scores: Tensor, values: Sequence[Tensor], value_scales: Tensor) -> Tensor:
    """Return the means float32 [P, R, n, D] of P / T values int8 [E, T D], weighted by the softmax of scores.

    The scores are overwritten. A weight has fifteen bits below the largest of its row. Fewer are not enough for texts
    whose first token gets most of the weight.
    """
    top = scores.amax(-1, keepdim=True).sub_(log(_TOP))
    weights = scores.sub_(top).exp_().round_()
    total = _total(weights)
    most = weights.mul_(value_scales).amax(-1, keepdim=True)
    fine = weights.mul_(_MOST / most.clamp_min(LEAST)).round_().to(torch.int16)
    planes = fine.new_empty(len(fine), 2, *fine.shape[1:], dtype=torch.int8)
    planes[:, 1].copy_(fine)  # keeps the lower eight bits, as a number from -128 to 127
    planes[:, 0].copy_(fine.add_(_PLANE // 2).bitwise_right_shift_(8))
    sums = _values_of(planes.flatten(1, 3), values)
    high, low = sums.to(torch.float32).view(*planes.shape[:-1], -1).unbind(1)
    return torch.add(low, high, alpha=_PLANE).mul_((most.double() / (total * _MOST)).float())


def _total(weights: Tensor) -> Tensor:
    """Return the exact sums float64 [..., 1] of whole numbers [..., E]."""
    sums = [part.sum(-1, keepdim=True).double() for part in weights.split(_SUMMED, dim=-1)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


_seen = OfLastMask()


def _read_mask(mask: Tensor | None, query: Tensor, groups: int, count: int, causal: bool) -> _Seen:
    """Read a mask [B or 1, Q or 1, N or 1, S], which is Bool or added to the scores; without one, text is causal."""
    if mask is None:
        tokens = query.shape[2]
        return _causal(tokens) if causal and tokens > 1 else _Seen(count)
    batch, heads, tokens, _ = query.shape
    shape = batch, heads, tokens, groups
    return _seen.get(mask, shape, lambda: _seen_by(mask, *shape))


@lru_cache(maxsize=2)
def _causal(tokens: int) -> _Seen:
    every = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device="cpu")
    return _Seen(tokens, every.triu_(1), first=1)


def _seen_by(mask: Tensor, batch: int, heads: int, tokens: int, groups: int) -> _Seen:
    several, per_head, _, width = mask.shape
    group = heads // groups if per_head > 1 else 1
    order = _shortest_first(mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)
    mask = mask if order is None else mask[order]
    each = (batch, groups * group) if several > 1 or per_head > 1 else (1, 1)
    mask = mask.expand(*each, tokens, -1)
    mask = mask.reshape(-1, group, *mask.shape[2:])  # by pairs
    if mask.dtype == torch.bool:
        unseen, bias = ~mask, None
    else:
        unseen = mask < torch.finfo(mask.dtype).min / 2
        added = mask.masked_fill(unseen, 0.0)
        bias = added.to(torch.float32) if bool(added.any()) else None
    kept = unseen.flatten(0, 2).any(0)
    first = int(kept.long().argmax()) if bool(kept.any()) else width
    return _Seen(width, unseen, bias, first, order)


def _shortest_first(visible: Tensor) -> Tensor | None:
    """Return the texts Long [B] of a mask Bool [B, H, N, S], sorted by the last slot that their tokens see."""
    if len(visible) == 1:
        return None
    ends = visible.flatten(1, 2).any(1).flip(1).long().argmax(1)
    return None if bool((ends == ends[0]).all()) else ends.argsort(descending=True, stable=True)


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
    """Attend for a model, which expects [B, N, Q, D]; keys and values are tensors, or come from `WholeCache`."""
    assert options.get("s_aux") is None and position_bias is None, "an unknown kind of attention"
    if torch.is_grad_enabled() and isinstance(key, Tensor):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    texts = key if isinstance(key, WholeTexts) else WholeTexts.of(key, value)
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    seen = _read_mask(attention_mask, query, texts.key_scales.shape[1], texts.count, causal)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, texts, seen, scale, softcap), None
