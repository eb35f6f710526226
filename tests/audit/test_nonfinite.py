"""Logits that are no finite numbers are a finding, and what is finite is still judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf, isfinite, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.audit import judge as judge_module
from clover.audit.judge import Judge, Mismatch, Rounding
from clover.audit.local import draw_test
from clover.audit.report import make_report
from clover.audit.rounding import other_shapes
from clover.audit.trace import TracedTarget
from clover.engine import Request
from clover.measure.report.provenance import Provenance
from clover.sampling import SamplingParams
from tests.audit.conftest import NEW_TOKENS, audit_of, prompts_of, weak_attention

POSITIONS = 5 * NEW_TOKENS


def broken_head(value: float) -> TracedTarget:
    """A target of which one logit is no finite number, whatever the text."""
    target = weak_attention()
    with torch.no_grad():
        target.lm_head_weight[3] = value
    return target


@pytest.mark.parametrize("value", [nan, inf])
def test_a_model_without_finite_logits_is_no_clean_one(value: float) -> None:
    found = audit_of(broken_head(value), ("chain:4",), temperature=0).run()
    assert found.differences == []  # all ways choose the token without a number
    assert (
        f"the model's logits are no finite numbers at {POSITIONS} of {POSITIONS} positions" in found.problems
    )
    assert found.rounding.nonfinite == POSITIONS and found.rounding.positions == 0
    origin = Provenance.here("clover audit", torch.device("cpu"), torch.float32)
    report = make_report(found, origin, [], str)
    assert report.title.startswith("Defect") and json.loads(report.json())["verdict"] == "defect"


def test_one_position_without_a_number_leaves_the_others_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def shapes(target: Any, text: Any, new: int, cached: bool) -> Iterator[Tensor]:
        *others, last = other_shapes(target, text, new, cached)
        yield from others
        yield last.index_fill(0, torch.tensor(2), nan) if text[:4] == [35, 11, 21, 11] else last

    target = weak_attention()
    clean = audit_of(target, ("chain:4",), temperature=0).run()
    monkeypatch.setattr(judge_module, "other_shapes", shapes)
    found = audit_of(target, ("chain:4",), temperature=0).run()
    assert found.problems == [f"the model's logits are no finite numbers at 1 of {POSITIONS} positions"]
    assert found.rounding.most == pytest.approx(clean.rounding.most, rel=0.5)
    assert all(0 < method.worst < found.rounding.most for method in found.methods)


@pytest.mark.parametrize("value", [nan, inf])
def test_an_engine_without_finite_logits_is_found(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = TracedTarget.logits

    def wrong(self: TracedTarget, hidden: Tensor) -> Tensor:
        """What the engine remembers is no number behind the first node; what it chooses from is."""
        said = logits(self, hidden)
        if said.dim() == 3 and said.shape[1] > 1:
            self.last = said.clone()
            self.last[:, 1:, 0] = value
        return said

    monkeypatch.setattr(TracedTarget, "logits", wrong)
    found = audit_of(weak_attention(), ("chain:4",), temperature=0).run()
    drafted = next(method for method in found.methods if method.name.startswith("chain:4"))
    assert found.differences == [] and isfinite(drafted.worst)
    assert len(found.problems) == 1 and "verified positions are no finite numbers" in drafted.problems[0]


def test_noise_without_a_number_excuses_no_token() -> None:
    for noise in (nan, inf):
        assert not Rounding(logits=0.01, pair=0.01).explains(Mismatch(0, 1, 2, gap=0.02, noise=noise))
        assert not Rounding(logits=0.01, pair=0.01).explains(Mismatch(0, 1, 2, gap=inf, noise=noise))


def test_a_drawn_token_without_a_probability_is_found() -> None:
    target = broken_head(nan)
    request = Request(prompts_of(target)[0], 5, SamplingParams(temperature=1.0))
    *_, impossible = draw_test(Judge(target), request, [(5, 6, 7, 8, 9), (5, 7, 6, 9, 8)])
    assert impossible == 10
