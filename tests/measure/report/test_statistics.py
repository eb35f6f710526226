from __future__ import annotations

import random

import pytest

from clover.measure.report.statistics import ratio


def test_one_sample_has_no_error() -> None:
    assert ratio([(3.0, 2.0)]).error is None
    assert ratio([(3.0, 1.0)]).text() == "3.00"


def test_error_of_a_ratio_is_the_spread_over_repetitions() -> None:
    chooser = random.Random(0)

    def sample():
        below = [chooser.uniform(1, 3) for _ in range(60)]
        above = [2 * x + chooser.gauss(0, 0.5) for x in below]
        return ratio(list(zip(above, below)))

    found = [sample() for _ in range(400)]
    values = [one.value for one in found]
    centre = sum(values) / len(values)
    spread = (sum((value - centre) ** 2 for value in values) / len(values)) ** 0.5
    typical = sum(one.error or 0.0 for one in found) / len(found)
    assert centre == pytest.approx(2.0, rel=0.01)
    assert typical == pytest.approx(spread, rel=0.1)
