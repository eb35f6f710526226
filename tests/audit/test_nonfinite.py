"""Logits that are not finite are a finding, and what is finite is still judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite, nan
from typing import Any

import pytest
import torch

from clover.audit import texts as texts_module
from clover.audit.judge import measure_rounding
from clover.audit.model import ModelSource
from clover.audit.rules import Rules
from clover.audit.texts import Case, Text
from clover.engine import StepEvent
from clover.errors import UserError
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.audit.conftest import audit_of, prompts_of, weak_attention

POSITIONS = 5 * 6  # prompts, and places where rounding is measured


def broken_head(value: float) -> TargetModel:
    """A target of which one logit is no finite number, whatever the text."""
    target = weak_attention()
    with torch.no_grad():
        target.lm_head_weight[3] = value
    return target


@pytest.mark.parametrize("value", [nan, inf])
def test_a_model_without_finite_logits_is_no_clean_one(value: float) -> None:
    """The engine refuses it; what the model itself says is no number at any place."""
    audit = audit_of(broken_head(value), ("chain:4",), temperature=0)
    with pytest.raises(UserError, match="logits are NaN or infinite"):
        audit.run()
    cases = audit.modes["greedy"]
    rounding = measure_rounding(
        audit.plain, dict(zip(cases, audit.plain.write(cases, 1), strict=True)), 4, 0.0
    )
    assert (rounding.nonfinite, rounding.positions) == (POSITIONS, 0)


def test_one_position_without_a_number_leaves_the_others_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    write = ModelSource.write

    def last_without(self: ModelSource, cases: Sequence[Case], *given: Any) -> list[Text]:
        *found, last = write(self, cases, *given)
        entry = dict.fromkeys(last.logprobs[0], nan)
        return [*found, replace(last, logprobs=(entry,)) if len(last.tokens) == 1 else last]

    target = weak_attention()
    clean = audit_of(target, ("chain:4",), temperature=0).run()
    monkeypatch.setattr(ModelSource, "write", last_without)
    found = audit_of(target, ("chain:4",), temperature=0).run()
    assert found.problems == [f"the model's logits are not finite at 1 of {POSITIONS} positions"]
    assert found.rounding.most == pytest.approx(clean.rounding.most, rel=0.5)
    assert all(0 < method.worst < found.rounding.most for method in found.methods)


def test_an_engine_without_finite_logits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text_of = texts_module._text

    def wrong(events: Sequence[StepEvent]) -> Text:
        """What the engine says of accepted tokens is no number; what it chooses from is."""
        text = text_of(events)
        accepted = [at > 0 for event in events for at in range(len(event.tokens))]
        entries = (
            dict.fromkeys(one, nan) if bad else one for one, bad in zip(text.logprobs, accepted, strict=True)
        )
        return replace(text, logprobs=tuple(entries))

    monkeypatch.setattr(texts_module, "_text", wrong)
    found = audit_of(weak_attention(), ("chain:4",), temperature=0).run()
    drafted = next(method for method in found.methods if method.name.startswith("chain:4"))
    assert found.mismatches == [] and isfinite(drafted.worst)
    assert len(found.problems) == 1 and "tokens are not finite" in drafted.problems[0]


def test_a_drawn_token_without_a_probability_is_found() -> None:
    target = broken_head(nan)
    rules = Rules(prompts_of(target)[0], SamplingParams(temperature=1.0))
    *_, impossible = ModelSource(target).places(rules, [(5, 6, 7, 8, 9), (5, 7, 6, 9, 8)], rounding=0.1)
    assert impossible == 10
