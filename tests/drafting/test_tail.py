"""How far behind the slowest row will be, against batches whose rows differ in difficulty and luck. Seeds are fixed."""

from __future__ import annotations

import random
from math import exp
from statistics import fmean

import pytest

from clover.drafting.tail import Tail


def test_a_row_alone_and_rows_that_go_in_step_have_no_lag() -> None:
    assert Tail([80]).lag(3.0) == 0.0
    assert Tail([80] * 16).lag(1.0) == 0.0
    assert Tail([10, 20, 30]).lag(1.0) == pytest.approx(0.5)


def test_it_grows_with_the_rows_with_what_drafting_adds_and_towards_the_end() -> None:
    assert (
        Tail([80] * 4).lag(3.0)
        < Tail([80] * 16).lag(3.0)
        < Tail([80] * 16).lag(5.0)
        < Tail([20] * 16).lag(5.0)
    )
    assert Tail([80] * 4).lag(3.0) < Tail([80, 80, 80, 120]).lag(3.0)


def steps_of(tokens: int, depth: int, hazard: float, rng: random.Random) -> int:
    """Steps of one row, whose text has a difficulty of its own, as every step has."""
    return run_row(tokens, depth, hazard * rng.lognormvariate(0, 0.6), rng)[0]


def run_row(tokens: int, depth: int, difficulty: float, rng: random.Random) -> tuple[int, int]:
    """Steps of one row until it has so many tokens, and tokens it then has."""
    emitted, taken = 0, 0
    while emitted < tokens:
        going, accepted = exp(-difficulty * rng.expovariate(1)), 0
        while accepted < depth and rng.random() < going:
            accepted += 1
        emitted, taken = emitted + 1 + accepted, taken + 1
    return taken, emitted


@pytest.mark.parametrize(("depth", "hazard"), [(5, 0.25), (8, 0.12), (3, 0.4)])
@pytest.mark.parametrize("rows", [2, 4, 16])
def test_it_is_about_what_batches_show(rows: int, depth: int, hazard: float) -> None:
    rng = random.Random(1)
    batches = [[steps_of(80, depth, hazard, rng) for _ in range(rows)] for _ in range(150)]
    shown = fmean(max(steps) / fmean(steps) - 1 for steps in batches)
    emitted = 80 / fmean(fmean(steps) for steps in batches)
    assert Tail([80] * rows).lag(emitted) == pytest.approx(shown, rel=0.4)


@pytest.mark.parametrize(("depth", "hazard"), [(5, 0.25), (8, 0.12), (3, 0.4)])
@pytest.mark.parametrize("tokens", [30, 60, 120])
def test_rows_need_more_steps_than_their_mean_step_says(tokens: int, depth: int, hazard: float) -> None:
    rng, needed, emitted = random.Random(1), list[int](), list[float]()
    for _ in range(2500):
        difficulty = hazard * rng.lognormvariate(0, 0.6)
        needed.append(run_row(tokens, depth, difficulty, rng)[0])
        steps, written = run_row(400, depth, difficulty, rng)
        emitted.append(written / steps)
    shown = fmean(needed) * fmean(emitted) / tokens - 1
    assert Tail([tokens] * 8).surplus(fmean(emitted)) == pytest.approx(shown, rel=0.4)
    assert Tail([tokens] * 8).surplus(1.0) == 0.0
