from dataclasses import replace
from itertools import pairwise

import pytest

from clover.cost.calibrate import CurvePoint
from clover.cost.extrapolate import Calibration, Point, acceptance_of, tau_growth, tau_of
from tests.cost.curves import DEPTH, law_curve

EXACT = Calibration(prior_slope=9.0, weight=1.0, damping=0.7, spread=0.1, curves=4)


def growth(first: CurvePoint, second: CurvePoint, tokens: float, known: Calibration) -> float:
    return tau_growth(first.point, second.point, second.tau, DEPTH, tokens, known)


def test_tau_is_what_counting_gives() -> None:
    # Of 1000 steps 500 accept one token, of those 250 a second, of those 125 a third.
    assert tau_of(0.5, 3) == pytest.approx((1000 + 500 + 250 + 125) / 1000)
    assert (tau_of(0.0, 3), tau_of(1.0, 3)) == (1.0, 4.0)


@pytest.mark.parametrize("depth", [1, 5])
def test_acceptance_is_the_inverse(depth: int) -> None:
    for acceptance in (0.0, 0.001, 0.37, 0.99, 1.0):
        assert acceptance_of(tau_of(acceptance, depth), depth) == pytest.approx(acceptance, abs=1e-12)


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("distance", [0, 1, 4])
def test_a_curve_of_the_law_is_found_again(damping: float, distance: int) -> None:
    points = law_curve("law", -1.0, 0.4, damping).points
    later = points[1 + distance]
    found = growth(points[0], points[1], later.tokens, replace(EXACT, damping=damping))
    assert found == pytest.approx(later.tau / points[1].tau, rel=1e-9)


def test_slope_is_measured_per_doubling() -> None:
    points = law_curve("law", -1.0, 0.4, 1.0).points
    found = growth(points[0], points[2], points[4].tokens, replace(EXACT, damping=1.0))
    assert found == pytest.approx(points[4].tau / points[2].tau, rel=1e-9)


def test_without_weight_the_usual_slope_counts_alone() -> None:
    known = Calibration(prior_slope=0.4, weight=0.0, damping=1.0, spread=0.1, curves=4)
    points = law_curve("law", -1.0, 0.4, 1.0).points
    odd = CurvePoint(1000, (0.001, 0.9, 0.5), 1.0)
    assert growth(odd, points[1], points[3].tokens, known) == pytest.approx(
        points[3].tau / points[1].tau, rel=1e-9
    )


@pytest.mark.parametrize("tau", [1.0, 2.0, DEPTH + 1.0])
def test_more_training_never_forecasts_less(tau: float) -> None:
    worse = Point(1000, (0.5, 0.4, 0.0)), Point(2000, (0.3, 0.45, 1.0))
    for known in (EXACT, replace(EXACT, weight=0.3), replace(EXACT, prior_slope=0.0, damping=1.0)):
        found = [
            tau_growth(*worse, tau, DEPTH, tokens, known) for tokens in (2000, 2500, 4000, 64_000, 10**9)
        ]
        assert found[0] == 1.0
        assert all(a <= b for a, b in pairwise(found))
        assert tau * found[-1] <= DEPTH + 1.01
