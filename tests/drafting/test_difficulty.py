"""How hard texts are: each row by itself, and what new rows are taken to be."""

from __future__ import annotations

import random
from math import expm1

import pytest

from clover.drafting.difficulty import DifficultyEstimate


def estimate(rows: int = 1, presumed: float = 1.0) -> DifficultyEstimate:
    found = DifficultyEstimate(0.5, lambda temperature: presumed)
    found.enter(0.0, range(rows))
    return found


def test_what_is_presumed_holds_until_something_is_seen() -> None:
    assert estimate(3, 2.5).ratio == pytest.approx(2.5)


@pytest.mark.parametrize(("rows", "share"), [(1, 1 / 16), (16, 1 / 4)])
def test_more_rows_forget_faster(rows: int, share: float) -> None:
    found = estimate(rows)
    for _ in range(300):
        found.observe([0.25] * rows, [0.5] * rows)
    assert found.ratio == pytest.approx(0.5)
    found.observe([1.0] * rows, [0.5] * rows)
    assert found.ratio == pytest.approx((0.25 + share * 0.75) / 0.5)


def test_plain_steps_make_what_was_seen_old() -> None:
    found = estimate()
    for _ in range(300):
        found.observe([0.25], [0.5])
    found.fade()
    found.observe([1.0], [0.5])
    assert found.ratio == pytest.approx((0.25 + 0.75 / 2) / 0.5)


def test_the_rows_that_are_left_are_known_as_they_are() -> None:
    found = estimate(4)
    for _ in range(100):
        found.observe([0.2, 0.2, 0.2, 1.0], [0.5] * 4)
    assert found.ratio == pytest.approx(0.8, rel=0.01)
    found.enter(0.0, (3, 1))
    assert found.ratio == pytest.approx(1.2, rel=0.01)
    found.enter(0.0, (3,))
    assert found.ratio == pytest.approx(2.0, rel=0.01)


def test_rows_that_follow_are_not_taken_to_be_like_the_last_ones_of_a_batch() -> None:
    """Batches whose hard rows run on alone, one after another: each starts with the mean over whole texts."""
    rng, found = random.Random(3), estimate()
    for first in range(0, 1600, 16):
        left = dict.fromkeys(range(first, first + 16), 40)
        hazards = {row: 0.1 + 0.8 * (row % 16) / 15 for row in left}
        starts = None
        while left:
            found.enter(0.0, list(left))
            starts = starts or found.ratio
            paths = [path(rng, hazards[row]) for row in left]
            found.observe([float(ended) for ended, _ in paths], [0.25 * exposed for _, exposed in paths])
            lengths = dict(zip(left, (1 + int(exposed) for _, exposed in paths), strict=True))
            left = {row: count - lengths[row] for row, count in left.items() if count > lengths[row]}
        if first >= 160:
            assert 1.2 < starts < 2.2, "0.45 over 0.25, the ones that end early count less in steps"


def path(rng: random.Random, hazard: float) -> tuple[bool, float]:
    """Whether a path of at most 8 tokens ended, and the tokens it was exposed for."""
    for accepted in range(8):
        if rng.random() < -expm1(-hazard):
            return True, accepted + 1 / hazard - 1 / expm1(hazard)
    return False, 8.0


def test_the_order_of_rows_may_change() -> None:
    found = estimate(2)
    found.enter(0.0, (1, 0))
    for _ in range(100):
        found.observe([1.0, 0.2], [0.5, 0.5])
    found.enter(0.0, (1,))
    assert found.ratio == pytest.approx(2.0, rel=0.01)


def test_rows_of_one_temperature_tell_nothing_of_another() -> None:
    found = DifficultyEstimate(0.5, lambda temperature: 1.0 + temperature)
    found.enter(1.0, (0, 1))
    for _ in range(50):
        found.observe([1.0, 1.0], [0.2, 0.2])
    assert found.ratio == pytest.approx(5.0, rel=0.01)
    found.enter(0.2, (0, 1))
    assert found.ratio == pytest.approx(1.0)
    found.enter(0.8, (2, 3))
    assert found.ratio == pytest.approx(5.0, rel=0.1), "of the class of 1"
