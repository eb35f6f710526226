"""Draws that look at few tokens: those of a race of all tokens, bit by bit."""

import pytest
import torch
from torch import Tensor

from clover.sampling import race
from clover.sampling.gumbel_cache import CHOICE
from clover.sampling.numbers import gumbels
from clover.sampling.race import winners

V = 20_000


def reference(scores: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    numbers = gumbels(seeds[:, None], CHOICE, positions[:, None], torch.arange(scores.shape[1]))
    return (scores + numbers).max(-1).indices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0.0, 0.3, 1.0, 3.0, 30.0, 1e4])
def test_the_winner_is_that_of_all_tokens(width: float, dtype: torch.dtype) -> None:
    """From the flat distribution, in which nearly every winner is far below the best, to one without a choice."""
    scores = width * torch.randn(40, V, generator=torch.Generator().manual_seed(1), dtype=dtype)
    scores[:, ::3] = -torch.inf
    seeds, positions = torch.arange(40) * 7919, torch.arange(40) % 11
    assert torch.equal(winners(scores, seeds, positions, [False] * 40), reference(scores, seeds, positions))


def test_most_tokens_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = list[int](), gumbels

    def counted(*places: Tensor | int) -> Tensor:
        found = real(places[0], *places[1:])  # type: ignore[arg-type]
        seen.append(found.numel())
        return found

    monkeypatch.setattr(race, "gumbels", counted)
    scores = 4 * torch.randn(8, V, generator=torch.Generator().manual_seed(2))
    winners(scores, torch.arange(8), torch.zeros(8, dtype=torch.long), [False] * 7 + [True])
    assert len(seen) == 8 and sum(seen) < 8 * V / 10  # the greedy row needs none


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_cannot_be_used_do_not_fail(value: float) -> None:
    scores = torch.randn(2, V)
    scores[0] = value
    seeds, positions = torch.arange(2), torch.zeros(2, dtype=torch.long)
    assert winners(scores, seeds, positions, [False] * 2)[1] == reference(scores, seeds, positions)[1]
