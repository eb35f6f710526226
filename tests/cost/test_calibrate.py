import math
from dataclasses import asdict, replace

import pytest

from clover.cost.calibrate import Curve, CurvePoint, find_cases, fit, load_calibration
from tests.cost.curves import DEPTH, law_curve

CURVES = [
    law_curve(f"law {i}", start, slope, 0.7)
    for i, (start, slope) in enumerate([(-2, 0.5), (-1, 0.3), (0, 0.8)])
]
SHORT = [Curve(curve.name, DEPTH, curve.points[:4]) for curve in CURVES]


def test_cases_are_two_neighbours_and_any_later_training() -> None:
    cases = find_cases(CURVES[:1])
    spans = [(c.first.tokens, c.second.tokens, c.later.tokens) for c in cases if c.first.tokens >= 4000]
    assert spans == [(4000, 8000, 16000), (4000, 8000, 32000), (8000, 16000, 32000)]
    assert len(cases) == 4 + 3 + 2 + 1
    assert cases[3].distance == 4.0


def test_neighbours_that_are_not_twice_as_long_are_left_out() -> None:
    points = CURVES[0].points
    assert find_cases([Curve("gap", DEPTH, (points[0], points[2], points[3], points[4]))]) != []
    assert {
        c.first.tokens
        for c in find_cases([Curve("gap", DEPTH, (points[0], points[2], points[3], points[4]))])
    } == {4000}


def test_fit_finds_the_law_and_no_spread() -> None:
    known = fit(SHORT)
    assert (known.weight, known.damping, known.curves) == (1.0, 0.7, 3)
    assert known.spread == 0.0


def test_fit_is_as_good_as_its_neighbours_or_more_damped() -> None:
    noisy = [_bent(curve, 0.05 * (-1) ** number) for number, curve in enumerate(SHORT)]
    known = fit(noisy)
    cases = find_cases(noisy)
    found = sum(case.error(known) ** 2 for case in cases)
    for change in ({"prior_slope": 0.05}, {"prior_slope": -0.05}, {"weight": -0.1}, {"damping": 0.1}):
        ((name, step),) = change.items()
        other = replace(known, **{name: min(1.0, max(0.0, getattr(known, name) + step))})
        assert found <= 1.2 * sum(case.error(other) ** 2 for case in cases) + 1e-15
    damped = replace(known, damping=known.damping - 0.1)
    assert found < sum(case.error(damped) ** 2 for case in cases)


def test_spread_is_the_error_on_curves_left_out() -> None:
    noisy = [_bent(curve, 0.05 * (-1) ** number) for number, curve in enumerate(SHORT)]
    known = fit(noisy)
    inside = [case.error(known) for case in find_cases(noisy)]
    assert known.spread >= math.sqrt(sum(e**2 for e in inside) / len(inside)) - 1e-4


def test_shipped_constants_can_be_used() -> None:
    known = load_calibration()
    assert known.curves >= 2
    assert known.spread > 0
    assert 0 <= known.weight <= 1 and 0 <= known.damping <= 1 and known.prior_slope >= 0
    assert set(asdict(known)) == {"prior_slope", "weight", "damping", "spread", "curves"}


def _bent(curve: Curve, share: float) -> Curve:
    """The curve with τ that grows faster or slower than the law says."""
    points = [CurvePoint(p.tokens, p.accuracy, p.tau * (1 + share * k)) for k, p in enumerate(curve.points)]
    return Curve(curve.name, DEPTH, tuple(points))


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_curves_are_a_defect_of_the_caller(count: int) -> None:
    with pytest.raises(AssertionError, match="two curves"):
        fit(CURVES[:count])
