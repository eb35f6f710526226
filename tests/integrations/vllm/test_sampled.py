"""At temperature 1 vLLM writes from the same distribution with a draft as without one."""

from collections import Counter

import pytest
import torch
from scipy.stats import chi2_contingency

from tests.integrations.vllm.engine import close, make_llm

TEXTS, NEW = 500, 4


@pytest.fixture
def expand_that_works(monkeypatch):
    """vLLM issue 55005: on a CPU the kernel that repeats a request's temperature per token loses its output."""
    from vllm.v1.sample import rejection_sampler

    def expand(x, ends, num_tokens, replace_from=0, replace_to=0):
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts, output_size=num_tokens)

    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand)


def samples(prompt, draft=None) -> list[tuple[int, ...]]:
    from vllm import SamplingParams

    llm = make_llm(draft, max_num_seqs=64)
    try:
        params = SamplingParams(temperature=1.0, max_tokens=NEW, ignore_eos=True, n=TEXTS)
        (output,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        return [tuple(one.token_ids) for one in output.outputs]
    finally:
        close(llm)


def p_value(ours: list, theirs: list) -> float:
    """Of one distribution; what was drawn fewer than ten times in all is one cell."""
    ours_count, theirs_count = Counter(ours), Counter(theirs)
    frequent = [key for key, count in (ours_count + theirs_count).items() if count >= 10]
    table = [[count[key] for key in frequent] for count in (ours_count, theirs_count)]
    for row in table:
        row.append(TEXTS - sum(row))
    kept = [pair for pair in zip(*table, strict=True) if sum(pair)]
    return float(chi2_contingency(kept).pvalue)


@pytest.fixture(scope="module")
def plain_samples(prompts):
    return samples(prompts[0])


@pytest.mark.parametrize("system", ["clover2", "recall"])
def test_samples_with_a_draft_are_those_without(system, drafts, prompts, plain_samples, expand_that_works):
    plain, with_draft = plain_samples, samples(prompts[0], drafts[system])
    for place in range(NEW):
        p = p_value([text[place] for text in plain], [text[place] for text in with_draft])
        assert p > 1e-4, f"the token at {place}: p = {p:.1e}"
    assert p_value([text[:2] for text in plain], [text[:2] for text in with_draft]) > 1e-4
