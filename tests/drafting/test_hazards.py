"""Survival with hazards that vary, against draws of it, and what is worked out from it against slow sums."""

from __future__ import annotations

import random
from itertools import pairwise
from math import exp, log

import pytest

from clover.drafting.hazards import MOST_SPREAD, accepted_of, exposure, fit, hazard_of, survival

SPREADS = (0.0, 0.3, 1.0, 2.0)


def drawn(rng: random.Random, hazard: float, spread: float, depth: int) -> int:
    """A path's accepted tokens: each step draws its hazard, then every token is put to the test."""
    own = rng.gammavariate(1 / spread, spread * hazard) if spread else hazard
    accepted = 0
    while accepted < depth and rng.random() < exp(-own):
        accepted += 1
    return accepted


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("hazard", [0.05, 0.4, 1.5])
def test_paths_survive_as_drawn_ones_do(hazard: float, spread: float) -> None:
    """Shares of 20,000 paths, to 4.5 standard errors: all cases together fail once in 2,000 seeds."""
    rng, count = random.Random(0), 20_000
    found = [drawn(rng, hazard, spread, 6) for _ in range(count)]
    for depth in range(1, 7):
        expected = survival(hazard, depth, spread)
        share = sum(length >= depth for length in found) / count
        assert abs(share - expected) < 4.5 * (expected * (1 - expected) / count) ** 0.5


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("depth", [1, 2.5, 12])
@pytest.mark.parametrize("spread", SPREADS)
def test_a_hazard_is_what_the_accepted_tokens_say(chance: float, depth: float, spread: float) -> None:
    hazard = -log(chance)
    if depth == 12:
        slow = sum(survival(hazard, token, spread) for token in range(1, 13))
        assert accepted_of(hazard, 12, spread) == pytest.approx(slow)
        if not spread:
            assert slow == pytest.approx(sum(chance**d for d in range(1, 13)))
    assert hazard_of(accepted_of(hazard, depth, spread), depth, spread) == pytest.approx(hazard, rel=1e-6)
    most = accepted_of(hazard_of(2 * depth, depth, spread), depth, spread)
    assert most == pytest.approx(depth, rel=0.01), "more is impossible"


@pytest.mark.parametrize("spread", SPREADS)
def test_tokens_grow_with_depth_and_a_part_of_a_token_counts_as_a_part(spread: float) -> None:
    whole = [accepted_of(0.3, depth, spread) for depth in (2, 3)]
    assert accepted_of(0.3, 2.25, spread) == pytest.approx(0.75 * whole[0] + 0.25 * whole[1])


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("hazard", [0.02, 0.3, 1.5, 6.0])
@pytest.mark.parametrize("depth", [1, 3, 12])
def test_at_the_true_hazard_as_many_paths_end_as_it_says(hazard: float, spread: float, depth: int) -> None:
    """Over all that may happen, each as likely as it is: so the estimate has its fixed point at the truth."""
    chances = [survival(hazard, token, spread) for token in range(depth + 1)]
    ends = [one - other for one, other in pairwise(chances)]
    exposed = sum(end * exposure(hazard, token, spread, True) for token, end in enumerate(ends))
    exposed += chances[-1] * exposure(hazard, depth, spread, False)
    assert hazard * exposed == pytest.approx(sum(ends), rel=1e-9)


def test_a_path_ends_within_a_token() -> None:
    for accepted in (0, 4):
        for spread in SPREADS:
            assert 0 < exposure(0.5, accepted, spread, True) < accepted + 1
    assert exposure(1e-6, 3, 0.0, True) == pytest.approx(3.5, rel=1e-3)


@pytest.mark.parametrize(("hazard", "spread"), [(0.4, 0.0), (0.25, 1.0), (0.6, 0.3), (0.3, 5.0)])
def test_what_is_fitted_is_what_was_drawn(hazard: float, spread: float) -> None:
    rng, depth = random.Random(1), 8
    lengths = [0] * (depth + 1)
    for _ in range(20_000):
        lengths[drawn(rng, hazard, spread, depth)] += 1
    found_hazard, found_spread = fit(lengths, depth)
    if spread <= MOST_SPREAD:
        assert found_hazard == pytest.approx(hazard, rel=0.06)
        assert found_spread == pytest.approx(spread, abs=0.15)
    else:
        assert found_spread == MOST_SPREAD
    mean = sum(count * length for length, count in enumerate(lengths)) / sum(lengths)
    assert accepted_of(found_hazard, depth, found_spread) == pytest.approx(mean, rel=1e-3)


def test_paths_that_all_reach_the_end_or_never_start_are_fitted_too() -> None:
    assert fit([0, 0, 0, 9], 3)[0] == pytest.approx(0.001, rel=1e-3)
    assert fit([9], 3)[0] > 7
    assert fit([], 3)[0] > 7, "nothing was seen"
