from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from clover.bench.context import Curve, measure_context
from clover.evaluate.progress import EvaluationProgress


def test_a_line_is_found_and_a_bend_shows() -> None:
    contexts = [1000, 2000, 4000, 8000]
    straight = Curve.fit("plain", contexts, [2e-3 + 1e-6 * x for x in contexts])
    assert straight.slope == pytest.approx(1e-6) and straight.intercept == pytest.approx(2e-3)
    assert straight.deviation == pytest.approx(0, abs=1e-9)
    bent = Curve.fit("plain", contexts, [1e-3 + 1e-9 * x * x for x in contexts])
    assert bent.deviation > 0.3


def test_steps_are_measured_at_every_context() -> None:
    torch.manual_seed(1)
    progress = EvaluationProgress(Console(file=io.StringIO()))
    found = measure_context("cpu", "float64", 2, progress, contexts=(40, 700, 1100))
    assert [curve.method for curve in found.curves] == ["plain", "own tree"]
    for curve in found.curves:
        assert curve.contexts == (40, 700, 1100) and len(curve.seconds) == 3 and min(curve.seconds) > 0
    assert (found.dtype, found.device.type) == ("float64", "cpu")
    assert progress.done == progress.total == 6
