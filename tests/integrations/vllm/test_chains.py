"""Both model runners draft what this project's engine drafts, token by token, and write what vLLM writes without."""

import os

import pytest
import torch

from clover import assets
from clover.drafts import load_draft
from clover.integrations.export import export
from clover.packaged import drafts_of
from clover.target import TargetModel
from tests.integrations.vllm.engine import BLOCK, SYSTEMS, Chain, Served, own_chains, serve

V2 = os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def assert_chains_are_own(chains: list[Chain], target, draft, fed=None):
    assert len(chains) >= 10
    own = own_chains(target, draft, chains, fed)
    other = [pair for pair in zip(chains, own, strict=True) if pair[0] != pair[1]]
    assert not other, f"{len(other)} of {len(chains)} differ; the first: {other[0]}"


@pytest.mark.parametrize(
    ("system", "drafted", "block"),
    [
        *(("clover2", 5, None), ("recall", 5, None), ("clover1", 3, None)),  # at the block size vLLM chooses
        *(("clover2", 3, BLOCK), ("recall", 1, BLOCK)),
    ],
)
def test_chains_and_texts(system, drafted, block, drafts, target, prompts, plain):
    served = serve(prompts, drafts[system], drafted, rounds=2, max_tokens=40, block_size=block)
    assert served.rounds == plain.rounds * 2
    if block is not None:
        assert served.cached >= 3 * block  # the second round reads its prompts from the prefix cache
    # model runner V1 prepares a draft's layers together, by the first: others would overrun its buffers
    assert len(served.shapes) == 1
    assert {len(chain.drafted) for chain in served.chains} == {drafted}
    assert_chains_are_own(served.chains, target, load_draft(assets.DRAFTS[system], target))


LONG = {"max_tokens": 60, "block_size": None, "max_model_len": 1024}


@pytest.fixture(scope="module")
def long(prompts) -> list[list[int]]:
    return [(prompts[-1] * 8)[:length] for length in (900, 600, 130)]


@pytest.fixture(scope="module")
def plain_long(long) -> Served:
    return serve(long, **LONG)


@pytest.mark.skipif(V2, reason="the Triton interpreter is slow, and V2 prepares each layer by itself")
@pytest.mark.parametrize("system", SYSTEMS)
def test_long_texts(system, drafts, target, long, plain_long):
    """The longer a text, the more buffers of the attention backend are used."""
    served = serve(long, drafts[system], **LONG)
    assert served.rounds == plain_long.rounds
    assert_chains_are_own(served.chains, target, load_draft(assets.DRAFTS[system], target))


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_prompt_read_in_chunks(system, drafts, target, prompts, plain):
    chunk = 40
    served = serve(prompts[-2:], drafts[system], max_num_batched_tokens=chunk, together=False)
    assert served.rounds[0] == plain.rounds[0][-2:]
    first, second = ([one for one in served.chains if list(one.text[: len(p)]) == p] for p in prompts[-2:])
    assert len(first) + len(second) == len(served.chains)
    for prompt, chains in zip(prompts[-2:], (first, second), strict=True):
        assert len(prompt) > 2 * chunk
        # Model runner V1 tells the draft the prompt's last token where a chunk ends.
        ends = {end - 1: prompt[-1] for end in range(chunk, len(prompt), chunk)}
        draft = load_draft(assets.DRAFTS[system], target)
        assert_chains_are_own(chains, target, draft, {} if V2 else ends)


@pytest.mark.parametrize("ranks", [1] if V2 else [1, 2])  # the Triton interpreter does not cross processes
def test_a_reduced_vocabulary(ranks, tmp_path, target, prompts, plain):
    draft = load_draft(assets.DRAFTS["clover2"], target)
    draft.reduce_vocabulary(torch.arange(0, target.vocab_size, 3))
    draft.save_pretrained(tmp_path / "draft")
    export("vllm", str(tmp_path / "draft"), tmp_path / "exported")
    served = serve(prompts, tmp_path / "exported", tensor_parallel_size=ranks)
    assert served.rounds == plain.rounds
    assert all(token % 3 == 0 for chain in served.chains for token in chain.drafted)
    assert_chains_are_own(served.chains, target, draft)


@pytest.mark.skipif(V2, reason="the Triton interpreter does not cross processes")
@pytest.mark.parametrize("system", ["clover1", "recall"])  # Clover-2 has two ranks above
def test_tensor_parallel(system, drafts, target, prompts, plain):
    served = serve(prompts, drafts[system], tensor_parallel_size=2)
    assert served.rounds == plain.rounds
    assert_chains_are_own(served.chains, target, load_draft(assets.DRAFTS[system], target))


@pytest.mark.skipif(V2, reason="model runner V1 is compiled; one compilation is enough")
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_compiled_target(system, drafts, target, prompts, plain):
    served = serve(prompts, drafts[system], enforce_eager=False)
    assert served.rounds == plain.rounds
    assert_chains_are_own(served.chains, target, load_draft(assets.DRAFTS[system], target))


@pytest.mark.skipif(V2, reason="a larger target adds nothing to what V2 shows")
def test_smollm2(tmp_path):
    """A real chat model, with three heads of queries to one of keys."""
    target = TargetModel.load("smollm2", "float32")
    assert target.tokenizer is not None
    target.model.save_pretrained(tmp_path / "target")
    texts = ["Once upon a time there was", "The three primary colours are red, yellow and blue. " * 20]
    prompts = [target.tokenizer.encode(text) for text in texts]
    settings = {"model": str(tmp_path / "target"), "skip_tokenizer_init": True, "block_size": None}
    plain = serve(prompts, **settings)
    for draft in drafts_of(target):  # as they are found, also where they are in packages of their own
        export("vllm", draft.name, tmp_path / draft.name)
        served = serve(prompts, tmp_path / draft.name, **settings)
        assert served.rounds == plain.rounds
        assert_chains_are_own(served.chains, target, load_draft(draft.place, target))
