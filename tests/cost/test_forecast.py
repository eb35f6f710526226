from itertools import pairwise

import pytest

from clover.cost.extrapolate import Calibration, Point
from clover.cost.forecast import forecast_speedup
from clover.cost.intervals import Interval
from clover.cost.measuring import PairTimes

KNOWN = Calibration(prior_slope=0.3, weight=0.5, damping=0.8, spread=0.05, curves=5)
FIRST, SECOND = Point(1000, (0.3, 0.2)), Point(2000, (0.4, 0.3))
TIMES = PairTimes(
    (0.10, 0.11, 0.10, 0.12, 0.09), (0.06, 0.07, 0.08, 0.06, 0.05), (1.6, 1.5, 1.4, 1.7, 1.6), 2
)
STEADY = PairTimes((0.1,) * 5, (0.05,) * 5, (1.5,) * 5, 2)


def told(tokens: float, times: PairTimes = TIMES, known: Calibration = KNOWN) -> Interval:
    return forecast_speedup(FIRST, SECOND, tokens, times, known).interval


def test_at_no_distance_it_is_the_probe_with_its_own_interval() -> None:
    found, own = told(2000), TIMES.speedup
    assert (found.value, found.low, found.high) == pytest.approx((own.value, own.low, own.high), rel=1e-12)


def test_grows_and_widens_with_distance() -> None:
    found = [told(tokens) for tokens in (2000, 4000, 8000, 32_000)]
    assert all(a.value < b.value for a, b in pairwise(found))
    assert all(a.high / a.low < b.high / b.low for a, b in pairwise(found))


def test_interval_is_students_t_where_prompts_agree() -> None:
    from scipy.stats import t

    found = told(8000, STEADY, Calibration(0.3, 0.5, 0.8, spread=0.01, curves=5))
    width = 0.01 * 2 * t.ppf(0.95, 4)
    assert found.high / found.value == pytest.approx(2.718281828**width, rel=0.004)
    assert found.low / found.value == pytest.approx(2.718281828**-width, rel=0.004)


def test_no_draw_leaves_what_heads_can_do() -> None:
    wild = Calibration(0.3, 0.5, 0.8, spread=5.0, curves=5)
    found = told(2_000_000, STEADY, wild)
    assert found.low == pytest.approx(2.0 / 1.5)  # τ = 1
    assert found.high == pytest.approx(2.0 * 3 / 1.5)  # two draft tokens and the bonus token


def test_draws_of_both_times_belong_together() -> None:
    found = forecast_speedup(FIRST, SECOND, 8000, TIMES, KNOWN)
    ratio = (found.plain / found.drafted).sort().values
    assert float(ratio[0]) <= found.interval.low < found.interval.high <= float(ratio[-1])
    assert sum(float(r) in found.interval for r in ratio) / len(ratio) == pytest.approx(0.9, abs=0.002)
