from itertools import product

import pytest
import torch

from clover.cost.intervals import DRAWS, LEVEL, Interval, interval, resample, resampled_means, student_t

VALUES = (1.0, 2.0, 4.0, 8.0)
OTHERS = (0.5, 1.5, 1.0, 5.0)


def all_ratios() -> list[float]:
    """Reference: the ratio of the sums for every one of the 4^4 ways to draw, in order."""
    rows = product(range(4), repeat=4)
    return sorted(sum(VALUES[i] for i in row) / sum(OTHERS[i] for i in row) for row in rows)


def test_bootstrap_agrees_with_all_possible_draws() -> None:
    drawn = resample(4)
    found = interval(1.0, resampled_means(VALUES, drawn) / resampled_means(OTHERS, drawn))
    every = all_ratios()
    # A share of DRAWS draws has a standard error of 0.0034 here; five of them are never exceeded.
    slack = round(5 * (0.05 * 0.95 / DRAWS) ** 0.5 * len(every)) + 1
    low, high = round(0.05 * len(every)), round(0.95 * len(every))
    assert every[low - slack] <= found.low <= every[low + slack]
    assert every[high - slack] <= found.high <= every[min(high + slack, len(every) - 1)]


def test_means_are_those_of_a_plain_loop() -> None:
    drawn = resample(4, seed=3, draws=50)
    expected = [sum(VALUES[i] for i in row) / 4 for row in drawn.tolist()]
    assert resampled_means(VALUES, drawn).tolist() == pytest.approx(expected, abs=1e-15)


def test_pairs_stay_together() -> None:
    drawn = resample(4)
    ratio = resampled_means([3 * value for value in VALUES], drawn) / resampled_means(VALUES, drawn)
    assert torch.allclose(ratio, torch.full_like(ratio, 3.0))


def test_bounds_are_the_inner_level_of_the_samples() -> None:
    samples = torch.arange(101.0).flip(0)
    assert interval(50.0, samples) == Interval(50.0, 5.0, 95.0)
    inside = sum(float(value) in interval(50.0, samples) for value in samples)
    assert inside / len(samples) == pytest.approx(LEVEL, abs=0.01)


def test_infinite_samples_give_infinite_bounds_and_no_others() -> None:
    samples = torch.arange(101.0)
    samples[90:] = float("inf")
    assert interval(50.0, samples) == Interval(50.0, 5.0, float("inf"))


def test_student_t_has_its_quantiles() -> None:
    from scipy.stats import t

    for freedom in (2, 3, 10):
        draws = student_t(freedom, draws=40_000)
        for share in (0.05, 0.5, 0.95):
            below = float((draws < t.ppf(share, freedom)).double().mean())
            assert below == pytest.approx(share, abs=5 * (0.25 / 40_000) ** 0.5)
