"""How options of `generate` reach the engine: as fields that do the same, or as processors run along the tree."""

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import clover
from clover.integrations.transformers_options import Ends, row_options
from clover.sampling import Sampler, SamplingParams
from clover.tree import TokenTree
from tests.families import VOCAB, tiny_model
from tests.integrations.small import PROMPTS, batch, draft_for

NEW, ENDS = 8, (4, 11, 25, 30, 41)


@pytest.mark.parametrize("do_sample", [True, False])
@pytest.mark.parametrize("bans", [True, False])
def test_options_do_what_the_processors_do(do_sample, bans):
    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.4),
            TemperatureLogitsWarper(0.7),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.02),
        ]
    )
    if bans:
        processors[:0] = [SequenceBiasLogitsProcessor([[[7], 2.5], [[30], float("-inf")]])]
        processors[2:2] = [NoBadWordsLogitsProcessor([[11], [2]], eos_token_id=2)]
    torch.manual_seed(0)
    logits, text = torch.randn(3, VOCAB) * 3, torch.randint(VOCAB, (3, 6))
    options = row_options(processors, [text[:1, :0]] * 3, do_sample, Ends(6, 9))
    assert all(("process" in row) == bans for row in options)
    params = [SamplingParams(**{"temperature": 0.0} | row) for row in options]
    sampler = Sampler(params, text.tolist(), VOCAB, "cpu")
    probs = sampler.target_probs(logits[:, None], TokenTree.root_only(text[:, -1:]))[:, 0]
    expected = processors(text, logits)
    if do_sample:
        torch.testing.assert_close(probs, expected.softmax(-1))
    else:
        assert probs.argmax(-1).equal(expected.argmax(-1))


class Trie:
    """Knows what may follow the texts that it allows itself, shorter than `NEW`, and raises KeyError for all others."""

    def __init__(self, prompt: int, ends: tuple[int, ...] = ()):
        self.prompt, self.ends = prompt, ends

    def __call__(self, row: int, text: Tensor) -> range:
        first, *new = text[self.prompt - 1 :].tolist()
        known = all(token % 3 == (first + at) % 3 for at, token in enumerate(new))
        if len(new) >= NEW or not known or not {*self.ends}.isdisjoint(new):
            raise KeyError(new)
        return range((first + len(new)) % 3, VOCAB, 3)


@pytest.mark.parametrize("tree", ["chain:4", "clover2", "drawn:clover2"])
@pytest.mark.parametrize("prompts", [PROMPTS, *([one] for one in PROMPTS)])
def test_functions_are_asked_of_no_text_that_generate_does_not_reach(tree, prompts):
    model, inputs = tiny_model("llama"), batch(prompts)
    ends = ENDS if len(prompts) == 1 else ()  # in batches generate shows them its padding
    allowed = Trie(inputs["input_ids"].shape[1], ends)
    options = {"max_new_tokens": NEW, "prefix_allowed_tokens_fn": allowed, "eos_token_id": list(ends) or None}

    def decode(way, do_sample):
        torch.manual_seed(7)
        return model.generate(**inputs, **options, do_sample=do_sample, custom_generate=way)

    fast, plain = (clover.speculative(draft_for(model), tree=one) for one in (tree, "plain"))
    assert decode(fast, False).equal(decode(None, False))
    if tree.startswith("drawn:"):  # another text, but drawn without asking of any that the trie lacks
        decode(fast, True)
    else:
        assert decode(fast, True).equal(decode(plain, True))
