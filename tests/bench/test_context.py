from __future__ import annotations

import pytest

from clover.bench.context import Curve, make_target, measure_context
from clover.report.progress import Progress


def test_a_line_is_found_and_a_bend_shows() -> None:
    contexts = [1000, 2000, 4000, 8000]
    straight = Curve.fit("plain", contexts, [2e-3 + 1e-6 * x for x in contexts])
    assert straight.slope == pytest.approx(1e-6) and straight.intercept == pytest.approx(2e-3)
    assert straight.deviation == pytest.approx(0, abs=1e-9)
    bent = Curve.fit("plain", contexts, [1e-3 + 1e-9 * x * x for x in contexts])
    assert bent.deviation > 0.3


def test_steps_are_measured_at_every_context() -> None:
    progress = Progress()
    found = measure_context(make_target("cpu", "float64", 600), 2, progress, contexts=(40, 300, 600))
    assert [curve.method for curve in found] == ["plain", "own tree"]
    for curve in found:
        assert curve.contexts == (40, 300, 600) and len(curve.seconds) == 3 and min(curve.seconds) > 0
    assert progress.done == progress.total == 600
