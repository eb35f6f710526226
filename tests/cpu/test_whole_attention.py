"""Attention of whole numbers against its definition in float64, and equal bits wherever a key lies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clover.cache import WholeCache
from clover.cache.whole import MOST, SHIFT
from clover.cpu import whole_attention

BATCH, GROUPS, HEADS, ROWS, SLOTS, WIDTH = 2, 2, 6, 5, 40, 16
MASKS = ("causal", "bool", "bool per head", "window", "alibi", "added per text", "two lengths", "one row")


def mask_of(kind: str, dtype: torch.dtype) -> Tensor | None:
    """A mask [B or 1, Q or 1, N, S]; row i sees slots up to SLOTS - ROWS + i."""
    torch.manual_seed(3)
    ends = torch.arange(SLOTS - ROWS, SLOTS)[:, None]
    slots = torch.arange(SLOTS)[None]
    causal = (slots <= ends)[None, None]
    distance = (slots - ends)[None, None].to(torch.float32)
    slopes = torch.tensor([2.0**-head for head in range(1, HEADS + 1)])[None, :, None, None]
    some = torch.rand(BATCH, HEADS, ROWS, SLOTS) > 0.3
    some[..., 0] = True
    least = torch.finfo(dtype).min
    return {
        "bool": causal & some[:, :1],
        "bool per head": causal & some,
        "window": causal & (distance > -7),
        "alibi": (slopes * distance).masked_fill(~causal, least).to(dtype),
        "added per text": torch.where(causal & some[:, :1], torch.randn(BATCH, 1, 1, SLOTS), -torch.inf).to(
            dtype
        ),
        "two lengths": causal & (slots < torch.tensor([21, SLOTS]).view(-1, 1, 1, 1)),
        "one row": some[:, :1, :1],
    }.get(kind)


def made(dtype: torch.dtype, rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query = torch.randn(BATCH, HEADS, rows, WIDTH)
    keys, values = torch.randn(2, BATCH, GROUPS, SLOTS, WIDTH)
    keys[..., 3] += 30  # a part that all keys share
    return tuple(part.to(dtype) for part in (query, keys, values))  # type: ignore[return-value]


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    """As a model calls it: [B, N, Q, D]."""
    with torch.no_grad():
        return whole_attention._attention(nn.Module(), query, keys, values, mask, **options)[0]


def rounded(rows: Tensor, most: int) -> Tensor:
    """Rows of whole numbers times a scale, in float64."""
    scale = rows.float().abs().amax(-1, keepdim=True) / most
    return (rows.float() / scale).round().double() * scale.double()


def slow(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, softcap: float | None = None
) -> Tensor:
    """Head by head, over rounded numbers, with sums and exponentials of float64."""
    found = torch.empty(BATCH, query.shape[2], HEADS, WIDTH, dtype=torch.float64)
    for text in range(BATCH):
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            scores = rounded(query[text, head], MOST) @ rounded(keys[text, group], MOST * SHIFT).T
            scores *= WIDTH**-0.5
            scores = scores if softcap is None else softcap * (scores / softcap).tanh()
            if mask is None:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            else:
                own = mask[text % len(mask), head % mask.shape[1]].expand_as(scores)
                scores = (
                    scores.masked_fill(~own, -torch.inf) if own.dtype == torch.bool else scores + own.double()
                )
            found[text, :, head] = scores.softmax(-1) @ rounded(values[text, group], MOST)
    return found


@pytest.fixture(params=["int32", "float64"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Products of int8, or those of processors on which they are not exact."""
    if request.param == "float64":
        monkeypatch.setattr(whole_attention, "products_are_exact", lambda: False)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.usefixtures("products")
def test_it_is_the_slow_one(kind: str, softcap: float | None, dtype: torch.dtype) -> None:
    mask = mask_of(kind, dtype)
    parts = made(dtype, SLOTS if mask is None else ROWS)
    found = attend(*parts, mask, softcap=softcap)
    assert found.dtype == dtype
    # A weight has an error of 1 / 30,000 of the largest one, twice; a value is at most 4, and there are 40.
    room = {torch.float32: 2e-3, torch.bfloat16: 1.5e-2}[dtype]
    torch.testing.assert_close(found.double(), slow(*parts, mask, softcap), rtol=room, atol=room)


@pytest.mark.parametrize("kind", MASKS[1:])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_bits_do_not_depend_on_where_keys_lie(kind: str, softcap: float | None, products: str) -> None:
    dtype = torch.bfloat16
    mask, (query, keys, values) = mask_of(kind, dtype), made(dtype)
    assert mask is not None
    expected = attend(query, keys, values, mask, softcap=softcap)
    order = torch.randperm(SLOTS)
    moved = keys[:, :, order], values[:, :, order], mask[..., order]
    assert torch.equal(attend(query, *moved, softcap=softcap), expected)
    hidden = False if mask.dtype == torch.bool else torch.finfo(dtype).min
    wide = torch.full((*mask.shape[:-1], 1300), hidden, dtype=mask.dtype)
    far = torch.randn(2, BATCH, GROUPS, 1300, WIDTH).mul_(9).to(dtype)
    places = torch.randperm(1300)[:SLOTS]
    wide[..., places], far[0][:, :, places], far[1][:, :, places] = mask, keys, values
    assert torch.equal(attend(query, *far, wide, softcap=softcap), expected), products


@pytest.mark.parametrize("kind", MASKS[1:])
def test_bits_do_not_depend_on_the_rows_beside(
    kind: str, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = torch.bfloat16
    mask, (query, keys, values) = mask_of(kind, dtype), made(dtype)
    assert mask is not None
    expected = attend(query, keys, values, mask)
    monkeypatch.setattr(whole_attention, "products_are_exact", lambda: products == "float64")
    assert torch.equal(attend(query, keys, values, mask), expected)  # the other way to multiply
    for row in range(ROWS):
        own = mask if mask.shape[2] == 1 else mask[:, :, row : row + 1]
        assert torch.equal(attend(query[:, :, row : row + 1], keys, values, own), expected[:, row : row + 1])
    for text in range(BATCH):
        own = mask if len(mask) == 1 else mask[text : text + 1]
        parts = (part[text : text + 1] for part in (query, keys, values))
        assert torch.equal(attend(*parts, own), expected[text : text + 1])
    monkeypatch.setattr(whole_attention, "_BLOCK", 100)  # of a token of a head each
    assert torch.equal(attend(query, keys, values, mask), expected)


@pytest.mark.usefixtures("products")
def test_plain_text_in_a_cache_and_alone() -> None:
    query, keys, values = made(torch.bfloat16, SLOTS)
    whole = attend(query, keys, values, None)
    cache = WholeCache.new((1, GROUPS, WIDTH, WIDTH), BATCH, 1, query)
    for start in range(0, SLOTS, 8):
        new = slice(start, start + 8)
        cache.begin(8)
        texts, _ = cache.update(keys[:, :, new], values[:, :, new], 0)
        mask = (torch.arange(start + 8)[None] <= torch.arange(start, start + 8)[:, None])[None, None]
        assert torch.equal(attend(query[:, :, new], texts, texts, mask), whole[:, new])  # type: ignore[arg-type]
        cache.commit([8] * BATCH)


def test_the_largest_numbers_are_summed_exactly() -> None:
    """1,300 equal keys: the total of the exponentials is beyond what float32 holds."""
    query, keys, values = torch.ones(1, 1, 1, 128), torch.ones(1, 1, 1300, 128), torch.ones(1, 1, 1300, 128)
    values[:, :, ::2] = -1
    values[:, :, 1298:] = 1
    assert attend(query, keys, values, None).flatten().tolist() == pytest.approx([2 / 1300] * 128, rel=1e-6)


def test_bits_do_not_depend_on_where_thousands_of_keys_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small scores give 3,000 keys nearly the same weight, so that a sum over all of them is above 2^24."""
    torch.manual_seed(1)
    query, keys, values = torch.randn(1, 2, 64, 16) / 50, *torch.randn(2, 1, 1, 3000, 16)
    every, order = torch.ones(1, 1, 64, 3000, dtype=torch.bool), torch.randperm(3000)
    moved = keys[:, :, order], values[:, :, order]
    expected = attend(query, keys, values, every)
    assert torch.equal(attend(query, *moved, every), expected)
    monkeypatch.setattr(whole_attention, "_SUMMED", 3000)  # sums in one part are not exact, and this shows it
    assert not torch.equal(attend(query, *moved, every), attend(query, keys, values, every))


def test_a_text_that_is_not_finite_spoils_no_other() -> None:
    query, keys, values = made(torch.bfloat16)
    expected = attend(query, keys, values, mask_of("bool", torch.bfloat16))
    keys[0, :, 4], values[0, :, 4] = torch.nan, torch.inf
    assert torch.equal(attend(query, keys, values, mask_of("bool", torch.bfloat16))[1], expected[1])
