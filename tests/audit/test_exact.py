"""Targets with int8 weights: texts must be equal, and rounding excuses nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from clover.audit.judge import Judge, MethodResult, Rounding
from clover.audit.model import ModelSource
from clover.audit.texts import Case, EngineSource
from clover.cpu import int8
from clover.engine import Engine
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.audit.conftest import audit_of, prompts_of
from tests.families import tiny_model

pytestmark = pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")
HOT = SamplingParams(temperature=0.8, seed=3)
ALL = Rounding(typical=1.0, pair=100.0, changed=1.0)  # explains any difference


@pytest.fixture(scope="module")
def rounded() -> TargetModel:
    target = TargetModel(tiny_model("llama", torch.bfloat16), weights="int8")
    assert target.exact
    return target


@pytest.mark.long
def test_a_clean_engine_has_no_near_ties(rounded: TargetModel) -> None:
    found = audit_of(rounded, ("chain:4", "clover2"), (1, 3)).run()
    assert (found.defects, found.mismatches, found.problems) == (0, [], [])
    assert max(method.tau for method in found.methods) > 1.1


def judged(target: TargetModel, params: SamplingParams) -> MethodResult:
    """The result of a text whose last token is another one, after that of the first method."""
    case, judge = Case(1, prompts_of(target)[0], 6, params), Judge(ModelSource(target), ALL)
    (expected,) = judge.plain.write([case], 1)
    (text,) = EngineSource(Engine(target)).write([case], 1)
    assert judge.compare("plain", [(case, expected, text)]).defects == 0
    tokens = (*text.tokens[:-1], (text.tokens[-1] + 1) % target.vocab_size)
    return judge.compare("chain", [(case, expected, replace(text, tokens=tokens))])


@pytest.mark.parametrize("params", [SamplingParams(), HOT])
def test_a_difference_is_a_defect_whatever_its_size(rounded: TargetModel, params: SamplingParams) -> None:
    assert judged(rounded, params).defects == 1
    assert judged(TargetModel(tiny_model("llama", torch.bfloat16)), params).defects == 0


def test_another_sampled_text_is_told(rounded: TargetModel) -> None:
    assert judged(rounded, HOT).problems == ["1 texts are not those of the first method, bit by bit"]
