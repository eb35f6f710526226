from __future__ import annotations

from dataclasses import replace

import pytest

from clover.measure.report.statistics import Estimate
from clover.measure.speed import Measured, Metrics, step_seconds
from clover.metrics import Acceptance
from tests.measure.hand import DRAFT_STEP, LIMITS, drafted, method, plain, run, theirs


def made(found: Measured | None = None, temperature: float = 0.0) -> Metrics:
    return (found or drafted()).metrics(plain(), 2, temperature, LIMITS)


def test_speed_is_that_of_the_median_rounds() -> None:
    one = made()
    assert (one.tokens_per_second, one.speedup) == (12.0, 4.0)  # 6 tokens; medians: 0.5 and 2 s
    assert one.speedup_error is None
    base = made(plain())
    assert (base.speedup, base.tokens_per_second) == (1.0, 3.0)


def test_errors_are_those_over_batches() -> None:
    def measured(name: str, seconds: tuple[float, ...]) -> Measured:
        batches = [[run(s, ((1, 2),), [2], prefill=s / 2)] for s in seconds]
        return Measured(method(name), batches, steps=DRAFT_STEP)

    base, fast = measured("plain", (1.0, 2.0, 3.0)), measured("own", (0.5, 1.0, 1.5))
    assert fast.metrics(base, 1, 0.0).speedup == 2.0
    assert fast.metrics(base, 1, 0.0).speedup_error == pytest.approx(0.0)
    uneven = measured("own", (0.5, 1.0, 3.0)).metrics(base, 1, 0.0)
    assert uneven.speedup == pytest.approx(6 / 4.5) and uneven.speedup_error


def test_a_prompt_that_fills_batches_is_one_prompt() -> None:
    parts = [Acceptance([steps, steps], [2 * steps], 2 * steps) for steps in (2, 3)]
    parts[1] = Acceptance([1, 5], [6], 6)

    def tau(times: int) -> Estimate:
        one = replace(run(1.0, (), [4, 4]), acceptances=tuple(parts * times))
        return Measured(method("own"), [[one]], prompts=2).tau

    assert tau(8) == tau(1) and tau(1).error


def test_share_of_the_ideal() -> None:
    one = made()
    assert one.tau == 3.0
    assert one.ideal_speedup == pytest.approx(3.0 * 0.010 / 0.012)  # a whole plain step over the verify phase
    assert one.ideal_share == pytest.approx(4.0 / 2.5)
    assert made(plain()).ideal_share is None and made(theirs()).ideal_share is None


def test_shares_of_the_ceilings() -> None:
    one = made()
    assert one.step_milliseconds == pytest.approx({name: 1e3 * value for name, value in DRAFT_STEP.items()})
    assert one.bandwidth_share == pytest.approx(0.001 / 0.020)  # 4 MB at 4 GB/s
    assert one.arithmetic_share == pytest.approx(2e6 * 2 * 8 / 1e10 / 0.020)  # 2 texts of 8 nodes
    assert made(drafted("auto")).arithmetic_share is None  # trees of many sizes
    other = made(theirs())
    assert other.bandwidth_share is other.step_milliseconds is None
    assert one.peak_memory_bytes is None  # not on a GPU
    assert drafted().metrics(plain(), 1, 0.0).bandwidth_share is None  # ceilings were not measured


def test_identical_counts_texts_where_they_are_comparable() -> None:
    assert made().identical is False and made().identical_texts == 1 and made().texts == 2
    assert made(plain()).identical is True
    assert made(theirs(), 1.0).identical is made(drafted("drawn:chain:2"), 1.0).identical is None
    same, other = run(1.0, ((1, 2, 3), (4, 5, 6)), [6]), run(1.0, ((1, 2, 9), (4, 5, 6)), [6])
    late = replace(drafted(), batches=[[same, same, other]])  # one text of one round
    assert made(late).identical is False and made(late).identical_texts == 1


def test_the_rest_of_a_step_is_other() -> None:
    runs = [
        run(1.0, ((1,),), [4], prefill=0.2, draft=0.1, run=0.3, verify=0.05, keep=0.05),
        run(2.0, ((1,),), [6], prefill=0.4, draft=0.1, run=0.5, verify=0.15, keep=0.15),
    ]
    steps = step_seconds(runs)
    expected = {"draft": 0.02, "run": 0.08, "verify": 0.02, "keep": 0.02, "total": 0.24, "other": 0.10}
    assert steps == pytest.approx(expected)  # the total is all but the prefill
