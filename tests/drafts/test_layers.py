"""Layers and session helpers that draft systems share."""

from __future__ import annotations

import pytest
import torch

from clover.drafts import MedusaDraft
from clover.drafts.layers import NOISE, ResidualBlock, cosine_weighted, identity_linear
from clover.drafts.session import last_position, shifted
from tests.drafts.checks import make


def test_each_head_is_weighted_by_its_own_cosine() -> None:
    query = torch.tensor([3.0, 4.0, 1.0, 0.0])
    key = torch.tensor([6.0, 8.0, 0.0, 5.0])
    value = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(cosine_weighted(query, key, value, 2), torch.tensor([1.0, 2.0, 0.0, 0.0]))
    torch.testing.assert_close(cosine_weighted(query, -key, value, 1), value * -50 / (26**0.5 * 125**0.5))


@torch.no_grad()
def test_a_residual_block_starts_as_the_identity() -> None:
    state = torch.randn(2, 3, 8)
    assert torch.equal(ResidualBlock(8)(state), state)


@torch.no_grad()
def test_noise_has_the_stated_size_and_no_mean() -> None:
    torch.manual_seed(0)
    weight = identity_linear(200, 100).weight - torch.eye(100, 200)
    assert weight.std().item() == pytest.approx(NOISE, rel=0.05)
    assert abs(weight.mean().item()) < 5 * NOISE / 20_000**0.5  # false alarms: 6e-7


@pytest.mark.parametrize("counts", [[3, 3], [1, 3], [0, 2], [2, 2]])
def test_the_last_real_position_of_each_row(counts: list[int]) -> None:
    for values in (torch.arange(6).view(2, 3), torch.randn(2, 3, 4)):
        found = last_position(values, counts)
        assert found.shape == (2, 1, *values.shape[2:])
        for row, count in enumerate(counts):
            assert count == 0 or torch.equal(found[row, 0], values[row, count - 1])


def test_tokens_move_left() -> None:
    assert shifted(torch.tensor([[5, 6, 7, 8]]), 3).tolist() == [[8, 0, 0, 0]]


def test_a_cache_of_no_layers_counts_positions() -> None:
    session = make(MedusaDraft)[1].new_session(3, capacity=1)
    for counts, expected in (([2, 1, 4], [2, 1, 4]), ([1, 4, 1], [3, 5, 5]), ([9, 9, 9], [12, 14, 14])):
        session.cache.begin(max(counts))
        session.cache.commit(counts)
        assert session.lengths == expected
    session.crop([12, 3, 7])
    session.drop(0)
    assert session.lengths == [7, 3]
    session.drop(1)
    session.drop(0)
    assert session.lengths == []
