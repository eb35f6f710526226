"""What is a near-tie, and what is not."""

from __future__ import annotations

from math import inf

import pytest
import torch

from clover.audit.judge import SAFETY, Judge, Mismatch, Rounding, token_probs
from clover.audit.results import compare
from clover.audit.rounding import reference_logits
from clover.audit.rules import Rules
from clover.audit.trace import Trace, TracedTarget, _agreeing
from clover.engine import Engine, Request
from clover.sampling import Sampler, SamplingParams
from clover.tree import TokenTree
from tests.audit.conftest import audit_of, prompts_of, weak_attention
from tests.engine.test_lossless import SETTINGS, run

PROMPT, NEW = (3, 7, 3), (5, 7, 5, 2)


@pytest.mark.parametrize("params", SETTINGS)
def test_rules_choose_what_the_sampler_chooses(params: SamplingParams) -> None:
    logits = 3 * torch.randn(4, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rules = Rules(PROMPT, torch.tensor(NEW), params)
    sampler = Sampler([params], [PROMPT], 50, "cpu")
    for at, token in enumerate((PROMPT[-1], *NEW[:-1])):
        tree = TokenTree.root_only(torch.tensor([[token]]))
        expected = sampler.choose(logits[None, at : at + 1], tree)
        assert rules.choices(logits[at : at + 1], torch.tensor([at])).tolist() == expected[0].tolist()
        if not params.greedy:
            probs = sampler.target_probs(logits[None, at : at + 1], tree)[0]
            torch.testing.assert_close(rules.probs(logits[at : at + 1], torch.tensor([at])), probs)
        sampler.commit(torch.tensor([[NEW[at]]]), torch.tensor([1]))


def test_tokens_of_equal_probability_have_one_place_together() -> None:
    rules = Rules(PROMPT, torch.tensor(NEW), SamplingParams(temperature=1.0))
    logits = torch.full((4, 50), -4.0, dtype=torch.float64)
    logits[2, 7] = 8.0
    (equal, above), *_, last = token_probs(rules, logits, torch.arange(4))
    assert (equal, above) == (pytest.approx(1.0), 0.0) and last == (pytest.approx(1.0), 0.0)
    logits[0, :10] = 1.0
    assert token_probs(rules, logits, torch.arange(1))[0][0] == pytest.approx(
        10 * float(logits[0].softmax(0)[5])
    )


def test_what_runs_past_the_end_of_a_text_agrees_up_to_it() -> None:
    assert _agreeing((5, 6, 7, 8), (5, 6), 0, 4) == 2
    assert _agreeing((5, 6, 7, 8), (5, 9, 7, 8), 0, 4) == 2
    assert _agreeing((5, 6, 7, 8), (4, 6, 7, 8), 1, 3) == 0


def test_the_gap_is_what_logits_must_move() -> None:
    logits = torch.tensor([1.0, 4.0, 3.25, -2.0])
    greedy = Rules((0,), torch.tensor([2]), SamplingParams())
    assert greedy.gap(logits, 0, 1) == 0.0
    assert greedy.gap(logits, 0, 2) == pytest.approx(0.75, rel=0.05)
    banned = Rules((0,), torch.tensor([2]), SamplingParams(banned_tokens=(2,)))
    assert banned.gap(logits, 0, 2) == inf
    filtered = Rules((0,), torch.tensor([3]), SamplingParams(temperature=1.0, top_k=2))
    assert filtered.gap(logits, 0, 3) >= 5.25


def test_a_near_tie_is_within_the_measured_rounding() -> None:
    rounding = Rounding(logits=0.01, pair=0.01)
    assert rounding.explains(Mismatch(0, 1, 2, gap=SAFETY * 0.0099, noise=0.0))
    assert rounding.explains(Mismatch(0, 1, 2, gap=SAFETY * 0.0199, noise=0.02))
    assert not rounding.explains(Mismatch(0, 1, 2, gap=SAFETY * 0.0101, noise=0.0))


def test_the_first_difference_of_bfloat16_is_a_near_tie() -> None:
    """Two tokens are made equal but for rounding: another batch size takes the other one."""
    target = weak_attention(torch.bfloat16)
    with torch.no_grad():
        weight = target.lm_head_weight
        weight[25:] = weight[:25]  # every token has a twin with nearly the same logit
        weight[25:, ::7] *= 1 + 2**-7
    found = audit_of(target).run()
    assert found.near_ties > 0 and found.defects == 0
    assert all(one.gap <= SAFETY * max(one.noise, found.rounding.pair) for one in found.differences)


def test_rounding_is_measured_and_follows_the_dtype() -> None:
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        target = weak_attention(dtype)
        requests = [Request(prompt, 8) for prompt in prompts_of(target)]
        judge = Judge(target)
        judge.calibrate(requests, [one.tokens for one in run(Engine(target), requests)])
        found[dtype] = judge.rounding
        assert judge.rounding.positions == sum(len(one.tokens) for one in run(Engine(target), requests))
    assert 0 < found[torch.float32].pair < 1e-4 < found[torch.bfloat16].pair < 0.5


def test_a_model_whose_logits_are_all_zero_is_judged() -> None:
    target = weak_attention()
    with torch.no_grad():
        target.lm_head_weight.zero_()
    found = audit_of(target).run()
    assert found.defects == 0 and found.rounding.worst == 1.0 and found.rounding.copy == 1.0


def test_a_text_of_other_tokens_is_no_near_tie(target: TracedTarget) -> None:
    request = Request(prompts_of(target)[0], 6)
    judge = Judge(target)
    (plain,) = run(Engine(target), [request])
    judge.calibrate([request], [plain.tokens])
    assert judge.probe(request, plain.tokens).mismatches == ()
    wrong = (*plain.tokens[:3], (plain.tokens[3] + 1) % target.vocab_size, *plain.tokens[4:])
    mismatches = judge.probe(request, wrong).mismatches
    assert mismatches[0].position == 3 and mismatches[0].expected == plain.tokens[3]
    assert not judge.rounding.explains(mismatches[0])


def test_a_token_that_the_model_chooses_in_a_longer_text_alone_is_a_near_tie(
    target: TracedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own forwards of two texts may round to another choice after the same beginning."""
    request = Request(prompts_of(target)[0], 6)
    (plain,) = run(Engine(target), [request])
    judge = Judge(target)
    judge.calibrate([request], [plain.tokens])
    rounding = judge.rounding.pair
    at, whole = 2, len(request.prompt) + len(plain.tokens)
    other = next(token for token in range(target.vocab_size) if token != plain.tokens[at])

    def nearly_equal(target: TracedTarget, tokens: torch.Tensor, new: int) -> torch.Tensor:
        logits = reference_logits(target, tokens, new).clone()
        moved = rounding if tokens.shape[1] == whole - 1 else -rounding
        logits[:, at, other] = logits[:, at, plain.tokens[at]] + moved
        return logits

    monkeypatch.setattr("clover.audit.judge.reference_logits", nearly_equal)
    judge = Judge(target, judge.rounding)
    shorter = (*plain.tokens[:at], other, *plain.tokens[at + 1 : -1])
    traced = Trace([plain.tokens, shorter], [[], []])
    method = compare(judge, "another", [request] * 2, [plain.tokens] * 2, traced, [True, True])
    first = next(one for one in method.differences if one.position == at + 1)
    assert not first.defect and 0 < first.gap < SAFETY * rounding
