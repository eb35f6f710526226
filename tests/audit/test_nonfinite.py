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
from clover.audit.draws import against_target, draw_requests
from clover.audit.judge import Flip, Judge, Noise
from clover.audit.noise import other_shapes
from clover.audit.report import make_report
from clover.audit.trace import TracedTarget
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
    assert found.noise.nonfinite == POSITIONS and found.noise.positions == 0
    origin = Provenance.here("clover audit", torch.device("cpu"), torch.float32)
    report = make_report([found], origin, [], str)
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
    assert found.noise.most == pytest.approx(clean.noise.most, rel=0.5)
    assert all(0 < way.worst < found.noise.most for way in found.ways)


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
    drafted = next(way for way in found.ways if way.name.startswith("chain:4"))
    assert found.differences == [] and isfinite(drafted.worst)
    assert len(found.problems) == 1 and "verified positions are no finite numbers" in drafted.problems[0]


def test_noise_without_a_number_excuses_no_token() -> None:
    for noise in (nan, inf):
        assert not Noise(logits=0.01, pair=0.01).allows(Flip(0, 1, 2, gap=0.02, noise=noise))
        assert not Noise(logits=0.01, pair=0.01).allows(Flip(0, 1, 2, gap=inf, noise=noise))


def test_a_drawn_token_without_a_probability_is_found() -> None:
    target = broken_head(nan)
    requests = draw_requests(prompts_of(target)[:1], [SamplingParams(temperature=1.0)], 2)
    _, problems = against_target(Judge(target), requests, [[(5, 6, 7, 8, 9), (5, 7, 6, 9, 8)]])
    assert problems == ["prompt 1: 10 tokens that the target gives no probability"]
