"""Running estimates: what they settle at, what they forget, and that single slow steps do not move them."""

from __future__ import annotations

import random

import pytest

from clover.drafting.estimates import AcceptanceEstimate, CostEstimate


def test_quality_scales_what_all_candidates_are_expected_to_give() -> None:
    estimate = AcceptanceEstimate({"small": 1.0, "large": 2.0}, weight=10.0)
    assert (estimate.tokens("small"), estimate.tokens("large"), estimate.tokens("none")) == (2.0, 3.0, 1.0)
    for _ in range(200):
        estimate.observe("small", 0.5, rows=1)
    assert estimate.tokens("small") == pytest.approx(1.5)
    assert estimate.tokens("large") == pytest.approx(2.0)
    assert estimate.tokens("none") == 1.0


def test_quality_is_the_mean_of_the_first_steps_and_an_exponential_one_later() -> None:
    estimate, seen = AcceptanceEstimate({"a": 1.0}, weight=1.0), [1.0]
    rng = random.Random(0)
    for _ in range(15):  # the quality of 1 it starts with counts as one step
        seen.append(rng.choice((0.0, 1.0, 4.0)))
        estimate.observe("a", seen[-1], rows=1)
        assert estimate.tokens("a") == pytest.approx(1 + sum(seen) / len(seen))
    before = estimate.tokens("a") - 1
    for _ in range(3):
        estimate.observe("a", 0.0, rows=1)
        before *= 15 / 16
        assert estimate.tokens("a") == pytest.approx(1 + before)


def test_more_rows_forget_faster_and_plain_steps_make_what_was_seen_old() -> None:
    estimates = [AcceptanceEstimate({"a": 1.0}, weight=1.0) for _ in range(3)]
    for estimate, rows in zip(estimates, (1, 16, 1)):
        for _ in range(200):
            estimate.observe("a", 2.0, rows)
    estimates[2].fade()
    for estimate, rows, left in zip(estimates, (1, 16, 1), (15 / 16, 3 / 4, 1 / 2)):
        estimate.observe("a", 0.0, rows)
        assert estimate.tokens("a") == pytest.approx(1 + 2 * left, rel=1e-3)


def test_gains_are_ratios_of_sums_and_weigh_what_was_believed() -> None:
    estimate = AcceptanceEstimate({"a": 1.0, "b": 3.0}, weight=10.0)
    estimate.compare("b", 1.0, rows=2)
    estimate.compare("b", 2.0, rows=8)
    assert estimate.tokens("b") == pytest.approx(1 + (10 * 3.0 + 2 * 1.0 + 8 * 2.0) / (10 + 2 + 8))
    assert estimate.tokens("a") == 2.0
    for _ in range(3000):
        estimate.compare("b", 0.5, rows=1)
    assert estimate.tokens("b") == pytest.approx(1.5, abs=0.01)


def test_costs_follow_the_machine_together() -> None:
    estimate = CostEstimate({"none": 1.0, "tree": 1.5}, weight=4)
    assert not estimate.paced
    for _ in range(9):
        estimate.observe("none", 3.0)
    assert estimate.paced
    assert (estimate.seconds("none"), estimate.seconds("tree")) == (3.0, 4.5)
    assert estimate.relative == {"none": 1.0, "tree": 1.5}
    estimate.interrupt()
    assert not estimate.paced


def test_trials_are_measured_by_the_speed_that_others_give() -> None:
    estimate = CostEstimate({}, weight=2)
    for _ in range(5):
        estimate.observe("none", 2.0)
    estimate.compare("tree", [5.0, 90.0, 5.0])
    assert estimate.relative == {"none": 2.0, "tree": 5.0}
    for _ in range(9):
        estimate.observe("none", 4.0)  # the machine is half as fast now
    estimate.compare("tree", [10.0, 10.0])
    assert estimate.relative["tree"] == 5.0


def test_four_slow_steps_move_no_median() -> None:
    estimate = CostEstimate({"none": 1.0}, weight=4)
    for seconds in (1.0, 1.0, 1.0, 1.0, 1.0, 50.0, 50.0, 50.0, 50.0):
        estimate.observe("none", seconds)
    assert estimate.seconds("none") == 1.0
