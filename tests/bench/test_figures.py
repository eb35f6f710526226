from __future__ import annotations

import pytest

from clover.bench.figures import StepTimes, figures, ideal_speedup, step_times
from tests.bench.hand import CEILINGS, DRAFT_STEP, PLAIN_STEP, WORK, drafted, plain, run


def made(found=None, **changes: object):
    return figures(found or drafted(**changes), plain(), 2, 0.0, WORK, CEILINGS, 7)


def test_speed_is_the_median_of_the_rounds_and_speedup_that_of_the_rounds_ratios() -> None:
    one = made()
    assert one.rounds_tokens_per_second == (12.0, 12.0, 3.0)  # 6 tokens in 0.5, 0.5 and 2 s
    assert one.rounds_speedup == (2.0, 4.0, 2.0)  # plain took 1, 2 and 4 s
    assert (one.tokens_per_second, one.speedup) == (12.0, 2.0)
    base = made(plain())
    assert base.rounds_speedup == (1.0, 1.0, 1.0) and base.tokens_per_second == 3.0


def test_share_of_the_ideal() -> None:
    one = made()
    assert one.tau == 3.0
    assert one.ideal_speedup == pytest.approx(3.0 * 0.010 / 0.012)  # a whole plain step over the verify phase
    assert one.ideal_share == pytest.approx(2.0 / 2.5)
    assert ideal_speedup(1.0, 0.2, 0.2) == 1.0
    assert made(plain()).ideal_share is None
    assert made(steps=None).ideal_share is None


def test_share_of_drafting_and_of_the_ceilings() -> None:
    one = made()
    assert PLAIN_STEP.total == pytest.approx(0.010) and DRAFT_STEP.total == pytest.approx(0.020)
    assert one.draft_share == pytest.approx(0.003 / 0.020)
    assert one.verify_share == pytest.approx(0.012 / 0.020)
    assert one.step_milliseconds == pytest.approx(
        {"draft": 3.0, "verify": 12.0, "accept": 1.0, "keep": 2.0, "other": 2.0, "total": 20.0}
    )
    assert one.bandwidth_share == pytest.approx(0.001 / 0.020)  # 4 MB at 4 GB/s
    assert one.arithmetic_share == pytest.approx(2e6 * 2 * 8 / 1e10 / 0.020)  # 2 texts of 8 nodes
    theirs = made(steps=None, drafts=False)
    assert theirs.draft_share is theirs.bandwidth_share is theirs.step_milliseconds is None
    assert one.peak_memory_bytes == 7


def test_identical_counts_texts_where_they_are_comparable() -> None:
    assert made().identical is False and made().identical_texts == 1 and made().texts == 2
    assert made(plain()).identical is True
    assert made(comparable=False).identical is None
    late = drafted()
    late.rounds[2][0] = run(1.0, ((1, 2, 9), (4, 5, 6)), [6])  # right but for one text of one round
    late.rounds[0][0] = late.rounds[1][0] = run(1.0, ((1, 2, 3), (4, 5, 6)), [6])
    assert made(late).identical is False and made(late).identical_texts == 1


def test_the_rest_of_a_step_is_other() -> None:
    runs = [
        run(1.0, ((1,),), [4], prefill=0.2, draft=0.1, verify=0.3, accept=0.05, keep=0.05),
        run(2.0, ((1,),), [6], prefill=0.4, draft=0.1, verify=0.5, accept=0.15, keep=0.15),
    ]
    steps = step_times(runs)
    assert steps.draft == pytest.approx(0.02) and steps.verify == pytest.approx(0.08)
    assert steps.accept == pytest.approx(0.02) and steps.keep == pytest.approx(0.02)
    assert steps.total == pytest.approx((3.0 - 0.6) / 10)  # all but the prefill
    assert steps.other == pytest.approx(0.24 - 0.14)
    assert isinstance(steps, StepTimes)
