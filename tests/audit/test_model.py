"""The plain side of a local audit: the unpatched model, and an independent implementation of the parameters."""

from __future__ import annotations

from math import inf

import pytest
import torch

from clover.audit.judge import measure_rounding
from clover.audit.model import ModelSource
from clover.audit.rules import Rules
from clover.audit.texts import Case
from clover.sampling import Sampler, SamplingParams
from clover.target import TargetModel
from clover.tree import TokenTree
from tests.audit.conftest import prompts_of, weak_attention
from tests.engine.test_lossless import SETTINGS
from tests.families import VOCAB, tiny_model
from tests.target.test_multimodal import model_of

PROMPT, NEW = (3, 7, 3), (5, 7, 5, 2)
GREEDY, HOT = Rules((0,), SamplingParams()), Rules(PROMPT, SamplingParams(temperature=1.0))


@pytest.mark.parametrize("params", SETTINGS)
def test_rules_choose_what_the_sampler_chooses(params: SamplingParams) -> None:
    logits = 3 * torch.randn(4, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rules, sampler = Rules(PROMPT, params), Sampler([params], [PROMPT], 50, "cpu")
    for at, token in enumerate((PROMPT[-1], *NEW[:-1])):
        tree = TokenTree.root_only(torch.tensor([[token]]))
        assert sampler.choose(logits[None, at : at + 1], tree).item() == rules.choice(logits[at], NEW[:at])
        if not params.greedy:
            probs = sampler.target_probs(logits[None, at : at + 1], tree)[0, 0]
            torch.testing.assert_close(rules.scores(logits[at], NEW[:at]).softmax(-1), probs)
        sampler.commit(torch.tensor([[NEW[at]]]), torch.tensor([1]))


def test_tokens_of_equal_probability_have_one_place_together() -> None:
    logits = torch.full((50,), -4.0, dtype=torch.float64)
    assert HOT.tail_masses(logits, (), 5) == (pytest.approx(1.0), 0.0)
    logits[:10] = 1.0
    assert HOT.tail_masses(logits, (), 5) == (pytest.approx(10 * float(logits.softmax(0)[5])), 0.0)
    assert HOT.tail_masses(logits, (), 20)[1] == pytest.approx(10 * float(logits.softmax(0)[5]))


def test_the_gap_is_what_logits_must_move() -> None:
    logits = torch.tensor([1.0, 4.0, 3.25, -2.0])
    assert GREEDY.gap(logits, (), 1) == 0.0
    assert GREEDY.gap(logits, (), 2) == pytest.approx(0.75)
    assert Rules((0,), SamplingParams(banned_tokens=(2,))).gap(logits, (), 2) == inf
    assert Rules((0,), SamplingParams(temperature=1.0, top_k=2)).gap(logits, (), 3) >= 5.25


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mistral", "read images"])
def test_all_shapes_agree(family: str) -> None:
    """Token by token, in a batch and as a whole the model says the same, also past the windows of layers."""
    target = TargetModel(model_of("gemma3") if family == "read images" else tiny_model(family))
    prompt = torch.randint(3, VOCAB - 3, (25,), generator=torch.Generator().manual_seed(0)).tolist()
    case, plain = Case(1, tuple(prompt), 20), ModelSource(target)
    (text,) = plain.write([case], 1)
    rounding = measure_rounding(plain, {case: text}, 4, 0.0)
    assert rounding.positions >= 5 and rounding.nonfinite == 0
    assert rounding.most * rounding.typical < 5e-5  # log-probabilities are float32
    whole = plain.logits(torch.tensor([[*prompt, *text.tokens]]), len(text.tokens))[0].log_softmax(-1)
    own = torch.tensor([entry[token] for token, entry in zip(text.tokens, text.logprobs, strict=True)])
    chosen = whole.gather(1, torch.tensor(text.tokens)[:, None])[:, 0].float()
    torch.testing.assert_close(own, chosen, rtol=0, atol=1e-5)


def test_rounding_follows_the_dtype() -> None:
    pairs = []
    for dtype in (torch.float32, torch.bfloat16):
        target = weak_attention(dtype)
        cases, plain = [Case(1, prompt, 8) for prompt in prompts_of(target)], ModelSource(target)
        pairs.append(
            measure_rounding(plain, dict(zip(cases, plain.write(cases, 1), strict=True)), 4, 0.8).pair
        )
    assert 0 < pairs[0] < 1e-4 < pairs[1] < 0.5
