"""What is a near-tie, and what is not."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
import torch

from clover.audit.judge import SAFETY, Judge, MethodResult, Rounding, measure_rounding
from clover.audit.model import ModelSource
from clover.audit.texts import Case, EngineSource, Text, first_difference, logprob_errors
from clover.engine import Engine
from clover.target import TargetModel
from tests.audit.conftest import audit_of, prompts_of, weak_attention


def test_a_near_tie_is_within_the_measured_rounding() -> None:
    rounding = Rounding(typical=0.01, pair=0.01)
    assert rounding.explains(SAFETY * 0.0099) and not rounding.explains(SAFETY * 0.0101)
    assert not rounding.explains(inf) and not rounding.explains(nan)
    assert not Rounding(pair=inf).explains(0.02) and not Rounding(pair=nan).explains(0.02)


def test_texts_are_compared_up_to_their_first_difference() -> None:
    plain = Text((5, 6, 7), ({5: -1.0, 2: -3.0}, {6: -1.0}, {7: -1.0}))
    assert first_difference(plain, plain) is None
    assert first_difference(plain, Text((5, 9, 7))) == (1, 6, 9)
    assert first_difference(plain, Text((5, 6))) == (2, 7, -1)
    found = Text((5, 9, 7), ({5: -1.5, 4: -2.0}, {9: -1.0}, {7: -2.0}))
    assert list(logprob_errors(plain, found)) == [0.5]


def test_the_first_difference_of_bfloat16_is_a_near_tie() -> None:
    """Two tokens are made equal but for rounding: another batch size takes the other one."""
    target = weak_attention(torch.bfloat16)
    with torch.no_grad():
        weight = target.lm_head_weight
        weight[25:] = weight[:25]  # every token has a twin with nearly the same logit
        weight[25:, ::7] *= 1 + 2**-7
    found = audit_of(target).run()
    assert found.near_ties > 0 and found.defects == 0
    assert all(one.gap <= SAFETY * found.rounding.pair for one in found.mismatches if one.gap is not None)


def test_a_model_whose_logits_are_all_zero_is_judged() -> None:
    target = weak_attention()
    with torch.no_grad():
        target.lm_head_weight.zero_()
    assert audit_of(target).run().defects == 0


def judged(
    target: TargetModel, change: dict[int, int], length: int | None = None, rounding: Rounding | None = None
) -> MethodResult:
    """The result of an engine's text of six tokens, of which some are raised, and the end is cut off."""
    case, plain = Case(1, prompts_of(target)[0], 6), ModelSource(target)
    (expected,) = plain.write([case], 1)
    (text,) = EngineSource(Engine(target)).write([case], 1)
    tokens = [(token + change.get(at, 0)) % target.vocab_size for at, token in enumerate(text.tokens)]
    changed = replace(text, tokens=tuple(tokens[:length]), logprobs=text.logprobs[:length])
    judge = Judge(plain, rounding or measure_rounding(plain, {case: expected}, 4, 0.0))
    return judge.compare("changed", [(case, expected, changed)])


def test_a_text_of_other_tokens_is_no_near_tie(target: TargetModel) -> None:
    assert judged(target, {}).mismatches == []
    result = judged(target, {3: 1})
    assert result.mismatches[0].position == 4 and result.mismatches[0].defect
    assert result.mismatches[0].token == (result.mismatches[0].expected + 1) % target.vocab_size


def test_every_token_is_judged_after_what_precedes_it(target: TargetModel) -> None:
    """After a near-tie the model goes on from the token that stands there, and finds the next one."""
    large = Rounding(typical=1.0, pair=100.0)
    found = [one.position for one in judged(target, {0: 1, 5: 1}, rounding=large).mismatches]
    assert found[0] == 1 and found[-1] == 6 and found == sorted(set(found))


def test_a_text_that_ends_early_is_a_defect(target: TargetModel) -> None:
    (mismatch,) = judged(target, {}, 4).mismatches
    assert (mismatch.position, mismatch.token, mismatch.gap, mismatch.defect) == (5, -1, None, True)


@pytest.mark.parametrize("moved", [1.0, -1.0])
def test_a_token_that_the_model_chooses_in_another_shape_is_a_near_tie(
    target: TargetModel, moved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own forwards may round to another choice after the same beginning."""
    at, write, logits = 2, ModelSource.write, ModelSource.logits
    case, rounding = Case(1, prompts_of(target)[0], 6), Rounding(typical=1e-3, pair=1e-3)
    (text,) = write(ModelSource(target), [case], 1)
    other = (text.tokens[at] + 1) % target.vocab_size

    def nearly_equal(self: ModelSource, texts: torch.Tensor, new: int) -> torch.Tensor:
        found = logits(self, texts, new).clone()
        found[:, 0, other] = found[:, 0, text.tokens[at]] + moved * rounding.pair
        return found

    monkeypatch.setattr(ModelSource, "logits", nearly_equal)
    changed = Text((*text.tokens[:at], other), text.logprobs[: at + 1])
    result = Judge(ModelSource(target), rounding).compare("another", [(case, text, changed)])
    (mismatch,) = result.mismatches
    assert not mismatch.defect and mismatch.gap is not None and 0 <= mismatch.gap < SAFETY * rounding.pair


def test_a_text_that_was_cut_is_compared_as_far_as_it_goes() -> None:
    target = weak_attention()
    plain, source = ModelSource(target), EngineSource(Engine(target))
    cases = [Case(number, prompt, 12) for number, prompt in enumerate(prompts_of(target), start=1)]
    whole, looks = plain.write(cases, 1), iter([False] * 7 + [True])
    texts = source.write(cases, 2, lambda: next(looks))
    assert [len(text.tokens) for text in texts] == [4, 4, 0, 0, 0] and all(text.cut for text in texts)
    rows = [row for row in zip(cases, whole, texts, strict=True) if row[2].tokens]
    judge = Judge(plain, measure_rounding(plain, dict(zip(cases, whole, strict=True)), 4, 0.0))
    found = judge.compare("cut", rows)
    assert (found.cut, found.tokens, found.defects) == (True, 8, 0)
    wrong = replace(texts[1], tokens=(*texts[1].tokens[:3], (texts[1].tokens[3] + 1) % target.vocab_size))
    found = judge.compare("wrong", [rows[0], (cases[1], whole[1], wrong)])
    assert [(one.prompt, one.position, one.defect) for one in found.mismatches] == [(2, 4, True)]


def test_without_time_no_text_goes_on_after_a_near_tie() -> None:
    """Tokens that are not compared are not counted."""
    target = weak_attention()
    plain, case = ModelSource(target), Case(1, prompts_of(target)[0], 12)
    (text,) = plain.write([case], 1)
    other = replace(
        text, tokens=(*text.tokens[:5], (text.tokens[5] + 1) % target.vocab_size, *text.tokens[6:])
    )
    loose = Rounding(typical=1e9, pair=1e9, changed=1.0)  # everything is a near-tie
    for enough, tokens in ((lambda: False, 12), (lambda: True, 7)):
        found = Judge(plain, loose, enough).compare("", [(case, text, other)])
        assert (found.cut, found.tokens, found.mismatches[0].defect) == (tokens < 12, tokens, False)


def test_the_model_ends_amid_a_text_and_begins_no_other() -> None:
    target = weak_attention()
    cases, looks = (
        [Case(number, prompt, 12) for number, prompt in enumerate(prompts_of(target), start=1)],
        iter([False] * 2 + [True] * 9),
    )
    texts = ModelSource(target).write(cases, 1, lambda: next(looks))
    assert [(len(text.tokens), text.cut) for text in texts] == [(3, True), *[(0, True)] * 4]


def test_draws_that_the_time_cuts_count_nothing() -> None:
    target = weak_attention()
    plain, source = ModelSource(target, draws=20), EngineSource(Engine(target))
    cases = [Case(number, prompt, 12) for number, prompt in enumerate(prompts_of(target), start=1)]
    assert plain.test_draws("x", source.write, cases, 0.8, 0.0, lambda: True) == ({}, [])
    p_values, _ = plain.test_draws("x", source.write, cases, 0.8, 0.0)
    assert len(p_values) == 2 and min(p_values.values()) > 1e-4
