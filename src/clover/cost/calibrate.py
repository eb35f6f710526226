"""The constants of the extrapolation, fitted to trainings of growing length and kept in `calibration.json`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from clover.cost.extrapolate import Calibration, Point, doublings, tau_growth
from clover.files import read_json

_STEPS = [step / 10 for step in range(11)]
_AS_GOOD = 0.2  # of the squared error above the least
_DOUBLED = 0.2  # so many doublings more or less than one still count as one: steps differ in tokens


@dataclass(frozen=True)
class CurvePoint:
    """A finished training of a curve, and the τ of its draft on prompts."""

    tokens: int
    accuracy: tuple[float, ...]
    tau: float

    @property
    def point(self) -> Point:
        """What a probe would know of it."""
        return Point(self.tokens, self.accuracy)


@dataclass(frozen=True)
class Curve:
    """Complete trainings of one combination of target, texts and options, each longer than the one before.

    Args:
        depth: of the tree whose τ was measured.
    """

    name: str
    depth: int
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True)
class Case:
    """One forecast that can be checked: from two trainings, the second twice as long, to a longer one."""

    curve: int
    depth: int
    first: CurvePoint
    second: CurvePoint
    later: CurvePoint

    @property
    def distance(self) -> float:
        """Doublings from the second to the later training."""
        return doublings(self.second.tokens, self.later.tokens)

    def error(self, known: Calibration) -> float:
        """Error of the forecast of log τ, per doubling."""
        second = self.second
        grown = tau_growth(self.first.point, second.point, second.tau, self.depth, self.later.tokens, known)
        return (math.log(self.later.tau / self.second.tau) - math.log(grown)) / self.distance


def find_cases(curves: Sequence[Curve]) -> list[Case]:
    """Every forecast that the curves can check."""
    return [
        Case(number, curve.depth, first, second, later)
        for number, curve in enumerate(curves)
        for at, (first, second) in enumerate(zip(curve.points, curve.points[1:], strict=False))
        if abs(doublings(first.tokens, second.tokens) - 1) <= _DOUBLED
        for later in curve.points[at + 2 :]
    ]


def fit(curves: Sequence[Curve]) -> Calibration:
    """The constants with the least squared error per doubling; of those about as good, with the strongest damping.

    Short curves hardly tell a steep damped growth from a flat undamped one, which promises more at a long distance.
    The spread is the error on each curve of constants fitted to the others.
    """
    cases = find_cases(curves)
    numbers = sorted({case.curve for case in cases})
    assert len(numbers) >= 2, "a spread needs two curves of three trainings at least"
    errors: list[float] = []
    for number in numbers:
        known = _best([case for case in cases if case.curve != number])
        errors += [case.error(known) for case in cases if case.curve == number]
    spread = math.sqrt(_mean_square(errors))
    return replace(_best(cases), spread=round(spread, 4), curves=len(numbers))


def load_calibration() -> Calibration:
    """The constants that Clover comes with."""
    return Calibration(**read_json(Path(__file__).with_name("calibration.json"))["constants"])


def calibration_record(known: Calibration, provenance: dict[str, object]) -> dict[str, object]:
    """What `calibration.json` holds."""
    return {"constants": asdict(known), "provenance": provenance}


def _best(cases: Sequence[Case]) -> Calibration:
    tried = [
        Calibration(prior, weight, damping, spread=0.0, curves=0)
        for prior, weight, damping in product(_STEPS, _STEPS, _STEPS)
    ]
    squares = [_mean_square([case.error(known) for case in cases]) for known in tried]
    enough = (1 + _AS_GOOD) * min(squares)
    good = [
        (known.damping, square, number)
        for number, (known, square) in enumerate(zip(tried, squares, strict=True))
        if square <= enough
    ]
    return tried[min(good)[-1]]


def _mean_square(errors: Sequence[float]) -> float:
    return sum(error**2 for error in errors) / len(errors)
