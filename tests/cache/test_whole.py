"""Keys and values as whole numbers: what is stored, and where the tokens of uneven rows are written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clover.cache import WholeCache
from clover.cache.whole import SHIFT, WholeTexts

LAYERS, WIDTHS = 2, (6, 4)


def states(rows: int, heads: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(rows, heads, count, width, generator=generator) for width in WIDTHS)
    return keys, values


def plain(texts: WholeTexts) -> tuple[Tensor, Tensor]:
    """Keys [B, G, S, Dk] and values [B, G, S, Dv] by the definition of what is stored."""
    (batch, parts, slots, _), heads = texts.keys.shape, texts.key_scales.shape[1]
    together = heads // parts
    planes = texts.keys.view(batch, parts, slots, 2, together, -1).double()
    keys = (SHIFT * planes[:, :, :, 0] + planes[:, :, :, 1]).transpose(2, 3).flatten(1, 2)
    values = texts.values.view(batch, parts, slots, together, -1).double().transpose(2, 3).flatten(1, 2)
    return keys * texts.key_scales[..., None], values * texts.value_scales[..., None]


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8])
def test_numbers_are_rounded_to_fifteen_and_eight_bits(heads: int) -> None:
    given = states(3, heads, 7, 0)
    texts = WholeTexts.of(*given)
    assert texts.keys.dtype == texts.values.dtype == torch.int8 and texts.count == 7
    for found, exact, bits in zip(plain(texts), given, (15, 8), strict=True):
        most = exact.abs().amax(-1, keepdim=True)
        assert bool(((found - exact).abs() <= most / 2 ** (bits - 1)).all())
    assert (plain(texts)[0] - given[0]).abs().max() < 3e-4 < (plain(texts)[1] - given[1]).abs().max()


def test_tokens_of_uneven_rows_are_written_where_their_texts_end() -> None:
    cache = WholeCache.new((LAYERS, 2, *WIDTHS), 3, 64, torch.zeros(1))
    cache.begin(5)
    for layer in range(LAYERS):
        cache.update(*states(3, 2, 5, layer), layer)
    cache.commit([5, 2, 3])
    cache.begin(4)
    mask = cache.attention_mask(torch.ones(4, 4).tril().bool().expand(3, -1, -1))
    positions = cache.positions(4)
    for layer in range(LAYERS):
        found = plain(cache.update(*states(3, 2, 4, 10 + layer), layer)[0])
        for row, length in enumerate((5, 2, 3)):
            first, more = states(3, 2, 5, layer), states(3, 2, 4, 10 + layer)
            expected = plain(
                WholeTexts.of(
                    *(torch.cat([a[:, :, :length], b], 2) for a, b in zip(first, more, strict=True))
                )
            )
            for one, other in zip(found, expected, strict=True):
                assert torch.equal(one[row, :, : length + 4], other[row])
    for row, length in enumerate((5, 2, 3)):
        assert mask[row, 0].sum(1).tolist() == [length + node + 1 for node in range(4)]
        assert bool(mask[row, 0, 0, : length + 1].all()) and not bool(mask[row, 0, :, length + 4 :].any())
        assert cache.slot_positions(positions)[row, : length + 4].tolist() == list(range(length + 4))
    before = [storage.clone() for storage in cache.storage]
    cache.keep(torch.tensor([[0, 1]] * 3), [2, 1, 2])
    assert cache.lengths == [7, 3, 5]
    assert all(torch.equal(*pair) for pair in zip(before, cache.storage, strict=True))  # nothing had to move
