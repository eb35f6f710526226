"""The arithmetic of the table, on runs made by hand."""

import dataclasses
import json

import pytest

from clover.demo.measure import PLAIN, TRANSFORMERS, Bench, Decoding, Round, Run
from clover.demo.report import Difference, Report, find_differences, summarize
from clover.engine import PhaseClock, Request
from clover.metrics import Acceptance
from clover.sampling import SamplingParams


def clock(steps: int, verify: float, draft: float = 0.0) -> PhaseClock:
    made = PhaseClock()
    made.steps = steps
    made.seconds.update(prefill=5.0, verify=verify, draft=draft)
    return made


def finished(run: Run) -> Decoding:
    decoding = Decoding.__new__(Decoding)
    decoding.run = run
    return decoding


def made_round(number: int, plain_seconds: float, draft_seconds: float, tokens: tuple[int, ...]) -> Round:
    """Eight tokens: plain decoding takes 8 steps of 10 ms, the draft 2 steps of 40 ms, 20 ms of it verifying."""
    plain = Run((1,) * 8, plain_seconds, Acceptance(histogram=[8]), clock(8, 0.08))
    accepted = Acceptance()
    for _ in range(2):
        accepted.record(4, 5)
    drafted = Run(tokens, draft_seconds, accepted, clock(2, 0.04, 0.04))
    request = Request((3,), 8, SamplingParams())
    methods = {PLAIN: finished(plain), "clover2": finished(drafted)}
    generate = Run((1,) * 8, 2 * plain_seconds, Acceptance(histogram=[8]))
    return Round(number, "x", request, methods, generate, verify_clock=drafted.clock)


def test_figures_are_ratios_of_totals() -> None:
    rounds = [made_round(0, 1.0, 0.5, (1,) * 8), made_round(1, 3.0, 1.0, (1,) * 7 + (2,))]
    generate, plain, drafted = summarize(rounds)
    assert (generate.name, plain.name, drafted.name) == (TRANSFORMERS, PLAIN, "clover2")
    assert plain.tokens_per_second == pytest.approx(16 / 4.0)
    assert drafted.speedup == pytest.approx(4.0 / 1.5)
    assert drafted.speedup_per_prompt == pytest.approx([2.0, 3.0])
    assert generate.speedup == pytest.approx(0.5)
    assert drafted.tau == 4.0
    assert drafted.acceptance_per_depth == [1.0, 1.0, 1.0, 0.0]
    assert drafted.ideal_speedup == pytest.approx(4.0 * 0.010 / 0.020)
    assert drafted.ideal_share == pytest.approx((4.0 / 1.5) / 2.0)
    assert (plain.ideal_speedup, generate.ideal_speedup) == (None, None)


def test_identity_is_counted() -> None:
    rounds = [made_round(0, 1.0, 0.5, (1,) * 8), made_round(1, 3.0, 1.0, (1,) * 7 + (2,))]
    _, plain, drafted = summarize(rounds)
    assert (plain.identical, drafted.identical) == (True, False)
    assert (drafted.identical_prompts, drafted.prompts) == (1, 2)


def test_a_difference_is_located_and_weighed(bench: Bench) -> None:
    done = bench.round(1, 0.0, 6)
    assert find_differences(bench.target, [done]) == []
    plain, drafted = done.runs[PLAIN].tokens, done.decodings["clover2"]
    assert drafted.run is not None
    other = (*plain[:3], (plain[3] + 1) % 257, *plain[4:])
    drafted.run = dataclasses.replace(drafted.run, tokens=other)
    (found,) = find_differences(bench.target, [done])
    assert (found.prompt, found.position) == (2, 4)
    assert found.gap is not None
    assert found.gap > 1e-3
    drafted.run = dataclasses.replace(drafted.run, tokens=plain[:4])
    assert find_differences(bench.target, [done]) == [Difference(2, 5, None)]


@pytest.mark.parametrize(
    ("dtype", "gap", "defect"),
    [("float32", 1e-6, False), ("float32", 0.5, True), ("float32", None, True), ("bfloat16", 0.5, False)],
)
def test_only_what_rounding_cannot_explain_is_a_defect(
    report: Report, dtype: str, gap: float | None, defect: bool
) -> None:
    changed = dataclasses.replace(report, dtype=dtype, differences=[Difference(1, 1, gap)])
    assert changed.defect is defect


def test_the_report_is_plain_json(report: Report) -> None:
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert {"device", "dtype", "target", "draft", "methods", "versions", "command"} <= set(read)
    keys = {"name", "temperature", "tokens_per_second", "tau", "acceptance_per_depth", "speedup"}
    assert all(keys | {"ideal_speedup", "identical"} <= set(method) for method in read["methods"])
