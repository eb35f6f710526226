"""`model.generate(custom_generate=clover.speculative(draft))` against `model.generate` without the argument."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
    TopKLogitsWarper,
)

import clover
from clover.drafting import parse_tree
from clover.drafts.loading import SYSTEMS
from clover.target import TargetModel
from tests.families import VOCAB, tiny_config, tiny_model
from tests.integrations.small import PAD, PROMPTS, Columns, Spread, batch, draft_for, tokenizer


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def fast(llama):
    return clover.speculative(draft_for(llama), tree="chain:3")


@torch.no_grad()
def test_a_model_that_changes_is_followed():
    model = tiny_model("llama", dtype=torch.float32)
    fast = clover.speculative(draft_for(model), tree="chain:3")

    def check(different: Tensor | None) -> Tensor:
        expected = model.generate(**batch(), max_new_tokens=20)
        assert model.generate(**batch(), max_new_tokens=20, custom_generate=fast).equal(expected)
        assert different is None or not expected.equal(different)
        return expected

    first = check(None)
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.1)
    second = check(first)
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})
    third = check(second)
    hook = model.model.layers[0].mlp.register_forward_hook(lambda module, given, output: -output)
    fourth = check(third)
    hook.remove()
    fifth = check(fourth)
    model.model.layers[0].mlp.forward = lambda inputs: inputs.square()
    check(fifth)


class Adapter(nn.Module):
    """A layer and what is added to its output while `active`, which nothing but this module knows."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer, self.active = layer, True
        self.added = nn.Linear(layer.in_features, layer.out_features, dtype=layer.weight.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + self.added(inputs) if self.active else self.layer(inputs)


@torch.no_grad()
def test_switches_of_other_modules_are_followed():
    model = tiny_model("llama", dtype=torch.float32)
    mlp = model.model.layers[0].mlp
    mlp.down_proj = Adapter(mlp.down_proj)
    fast = clover.speculative(draft_for(model), tree="chain:3")
    texts = []
    for active in (True, False, True):
        mlp.down_proj.active = active
        texts.append(model.generate(**batch(), max_new_tokens=20))
        assert model.generate(**batch(), max_new_tokens=20, custom_generate=fast).equal(texts[-1])
    assert not texts[0].equal(texts[1])


@torch.no_grad()
def test_weights_written_where_nothing_counts_it_are_followed():
    # Wide enough for packed weights, which are copies.
    config = LlamaConfig(
        **{**tiny_config("llama").to_dict(), "hidden_size": 256, "head_dim": 64, "tie_word_embeddings": False}
    )
    model = tiny_model("llama", dtype=torch.float32, config=config)
    fast = clover.speculative(draft_for(model), tree="chain:3")
    texts = []
    for _ in range(2):
        texts.append(model.generate(**batch(), max_new_tokens=12))
        assert model.generate(**batch(), max_new_tokens=12, custom_generate=fast).equal(texts[-1])
        weight = model.model.layers[0].self_attn.q_proj.weight
        weight.data += 0.2 * torch.randn_like(weight)
    assert not texts[0].equal(texts[1])


# -- greedy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "opt"])
def test_greedy_output_is_that_of_generate(family):
    model = tiny_model(family)
    fast = clover.speculative(draft_for(model))
    for options in ({"max_new_tokens": 30}, {"max_length": 24}, {"max_new_tokens": 1}):
        for inputs in (batch(), batch(PROMPTS[:1])):
            expected = model.generate(**inputs, **options)
            assert model.generate(**inputs, **options, custom_generate=fast).equal(expected)


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"sequence_bias": [[[7], 9.0], [[30], float("-inf")]], "repetition_penalty": 1.2},
        {"bad_words_ids": [[6], [41], [2]], "suppress_tokens": [9, 12]},
        {"renormalize_logits": True, "temperature": 0.3, "eos_token_id": None},
        {"eos_token_id": [11, 25, 31, 40], "repetition_penalty": 2.0},
        {"logits_processor": LogitsProcessorList([TopKLogitsWarper(3)])},
    ],
)
def test_greedy_output_with_processors_and_other_ends(llama, fast, options):
    plain = llama.generate(**batch(), max_new_tokens=30, **options)
    assert llama.generate(**batch(), max_new_tokens=30, **options, custom_generate=fast).equal(plain)
    unhindered = llama.generate(**batch(), max_new_tokens=30)
    assert "logits_processor" in options or "temperature" in options or not plain.equal(unhindered)


def allowed(row, text):
    return range((row + int(text[-1])) % 3, VOCAB, 3)


@pytest.fixture(scope="module")
def general(llama):
    return clover.speculative(draft_for(llama), tree="clover2", processors=[Spread])


OF_TEXT = [
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 6, "eos_token_id": list(range(1, VOCAB, 2))},
    {"prefix_allowed_tokens_fn": allowed},
    {"bad_words_ids": [[4, 5], [41]], "forced_eos_token_id": 3},
    {"logits_processor": [SequenceBiasLogitsProcessor([[[7], 9.0]])], "repetition_penalty": 1.2},
    {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.9)]},
    {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.9, prompt_ignore_length=2)]},
    {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.9, torch.tensor([3, 6, 0, 5]))]},
    {"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": 3},
    {"logits_processor": [Spread()]},
]


@pytest.mark.parametrize("options", OF_TEXT)
def test_other_processors_run_along_the_tree(llama, general, options):
    plain = llama.generate(**batch(), max_new_tokens=12, **options)
    assert llama.generate(**batch(), max_new_tokens=12, **options, custom_generate=general).equal(plain)
    assert not plain.equal(llama.generate(**batch(), max_new_tokens=12))


@pytest.mark.parametrize("options", [{"no_repeat_ngram_size": 2, "top_p": 0.9}, {"typical_p": 0.6}])
def test_samples_of_other_processors_are_those_of_plain_decoding(llama, general, options):
    def sample(way):
        torch.manual_seed(7)
        return llama.generate(**batch(), max_new_tokens=12, do_sample=True, **options, custom_generate=way)

    assert sample(general).equal(sample(clover.speculative(general.draft, tree="plain")))


def test_rows_that_end_early_are_padded(llama, fast):
    ends = [
        row[len(batch()["input_ids"][0]) + 4 * i]
        for i, row in enumerate(llama.generate(**batch(), max_new_tokens=20))
    ]
    options = {"max_new_tokens": 20, "eos_token_id": [int(end) for end in ends[:2]]}
    plain = llama.generate(**batch(), **options)
    assert (plain[:, -1] == PAD).any()
    assert llama.generate(**batch(), **options, custom_generate=fast).equal(plain)


@pytest.mark.parametrize("tree", ["auto", "plain", "lookup", "drawn:chain:2", parse_tree("chain:2")])
def test_it_takes_every_tree_that_load_takes(llama, tree):
    expected = llama.generate(**batch(), max_new_tokens=12)
    fast = clover.speculative(draft_for(llama), tree=tree)
    assert llama.generate(**batch(), max_new_tokens=12, custom_generate=fast).equal(expected)


def test_dictionary_and_inputs_without_mask(llama, fast):
    inputs = torch.tensor([[5, 9, 33], [8, 8, 1]])
    plain = llama.generate(inputs, max_new_tokens=9, pad_token_id=PAD)
    given = llama.generate(
        inputs, max_new_tokens=9, pad_token_id=PAD, return_dict_in_generate=True, custom_generate=fast
    )
    assert given.sequences.equal(plain)
    assert given.scores is None


@pytest.mark.parametrize("as_criterion", [False, True])
def test_stop_strings(llama, as_criterion):
    words, inputs = tokenizer(), batch(PROMPTS[:1])
    plain = llama.generate(**inputs, max_new_tokens=30)
    stop = words.convert_ids_to_tokens(plain[0, 12:14].tolist())
    options = {"max_new_tokens": 30, "stop_strings": ["".join(stop)]}
    expected = llama.generate(**inputs, **options, tokenizer=words)
    assert expected.shape[1] < plain.shape[1]
    fast = clover.speculative(draft_for(llama), tree="chain:3", tokenizer=words)
    if as_criterion:
        options = {"max_new_tokens": 30, "stopping_criteria": [StopStringCriteria(words, stop[0] + stop[1])]}
    assert llama.generate(**inputs, **options, custom_generate=fast).equal(expected)


class FewOdd(StoppingCriteria):
    """Ends a row once it has two odd tokens among its new ones, and all rows once one of them has five."""

    def __call__(self, input_ids, scores, **kwargs):
        odd = (input_ids[:, 7:] % 2).sum(1)
        return (odd > 1) | (odd > 4).any()


@pytest.mark.parametrize("eos", [None, 50])
@pytest.mark.parametrize(
    "options", [{"stopping_criteria": [FewOdd()]}, {"stop_strings": list("BDFHJLNPRTVXZbdfh")}]
)
def test_criteria_stop_where_they_do_in_generate(llama, general, eos, options):
    options = options | {"max_new_tokens": 30, "eos_token_id": eos}
    options |= {"tokenizer": tokenizer()} if "stop_strings" in options else {}
    plain, ours = Columns(), Columns()
    expected = llama.generate(**batch(), **options, streamer=plain)
    assert expected.shape[1] < 37
    fast = clover.speculative(general.draft, tree=general.tree, tokenizer=tokenizer(), streamer=ours)
    options.pop("tokenizer", None)
    assert llama.generate(**batch(), **options, custom_generate=fast).equal(expected)
    assert ours.put_values == plain.put_values and ours.ended


def test_max_time_stops_after_the_step_under_way(llama, fast):
    output = llama.generate(**batch(), max_new_tokens=200, max_time=1e-9, custom_generate=fast)
    plain = llama.generate(**batch(), max_new_tokens=200, max_time=1e-9)
    assert output.equal(plain)


# -- streaming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]])
def test_streamer_gets_what_generate_gives_it(llama, fast, prompts):
    eos = llama.generate(**batch(PROMPTS), max_new_tokens=9)[0, -1].item()
    plain, ours = Columns(), Columns()
    llama.generate(**batch(prompts), max_new_tokens=20, eos_token_id=eos, streamer=plain)
    fast = clover.speculative(fast.draft, tree="chain:3", streamer=ours)
    llama.generate(**batch(prompts), max_new_tokens=20, eos_token_id=eos, custom_generate=fast)
    assert ours.put_values == plain.put_values
    assert ours.ended


def test_text_streamer_ends(llama, fast):
    streamer = TextIteratorStreamer(tokenizer(), skip_prompt=True, timeout=5)
    fast = clover.speculative(fast.draft, tree="chain:3", streamer=streamer)
    llama.generate(**batch(PROMPTS[:1]), max_new_tokens=5, custom_generate=fast)
    assert "".join(streamer).split()


def test_a_streamer_gets_the_tokens_before_an_error():
    """Also those of the step that ends with it: a token whose states are NaN is forced as the fifth."""
    model = tiny_model("llama").float()
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
        model.get_output_embeddings().weight[7] = 0

    class Forced(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return torch.full_like(scores, -1e9).scatter(
                1, torch.full_like(input_ids[:, :1], 7 if input_ids.shape[1] % 5 == 4 else 9), 0.0
            )

    columns, prompt = Columns(), torch.tensor([[3, 9, 9, 9, 9]])
    fast = clover.speculative(tree="lookup", streamer=columns, processors=[Forced])
    options = {
        "max_new_tokens": 20,
        "custom_generate": fast,
        "logits_processor": LogitsProcessorList([Forced()]),
    }
    with pytest.raises(ValueError, match="NaN"):
        model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **options)
    assert columns.put_values[1:] == [[9]] * 4 + [[7]]
    assert columns.ended


# -- sampling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inference_mode", [False, True])
def test_torch_seed_reproduces_samples(llama, inference_mode):
    fast = clover.speculative(draft_for(llama), tree="chain:3")  # is set up by the first call

    def sample(seed):
        torch.manual_seed(seed)
        return llama.generate(**batch(), max_new_tokens=12, do_sample=True, custom_generate=fast)

    with torch.inference_mode(inference_mode):
        first, again, other = sample(3), sample(3), sample(4)
    assert first.equal(again)
    assert not first.equal(other)


@pytest.mark.parametrize("options", [{}, {"draft_vocab_size": 20}])
@pytest.mark.parametrize("system", SYSTEMS.values())
def test_greedy_and_what_is_set_up_draw_no_random_numbers(system, options, tmp_path):
    model = tiny_model("llama")
    system.from_target(TargetModel(model), **options).save_pretrained(tmp_path)
    before = torch.get_rng_state()
    model.generate(**batch(), max_new_tokens=3, custom_generate=clover.speculative(tmp_path))
    assert torch.get_rng_state().equal(before)


def test_sampled_tokens_follow_the_processed_distribution(llama, fast):
    count, prompt = 3000, torch.tensor([[5, 9, 33]])
    options = {
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 8,
        "repetition_penalty": 1.3,
        "max_new_tokens": 2,
    }
    torch.manual_seed(0)
    drawn = llama.generate(
        prompt,
        **options,
        pad_token_id=PAD,
        eos_token_id=None,
        num_return_sequences=count,
        custom_generate=fast,
    )
    assert len(set(map(tuple, drawn[:, :3].tolist()))) == 1
    known = llama.generate(
        prompt, **options, pad_token_id=PAD, return_dict_in_generate=True, output_scores=True
    )
    compare_counts(drawn[:, 3], known.scores[0][0].softmax(-1))
    first = drawn[:, 3].mode().values
    warped = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(0.8), TopKLogitsWarper(8)]
    )
    text = torch.cat([prompt, first.view(1, 1)], dim=1)
    second = warped(text, llama(text).logits[:, -1].float()).softmax(-1)[0]
    compare_counts(drawn[drawn[:, 3] == first, 4], second)


def compare_counts(drawn: torch.Tensor, probs: torch.Tensor) -> None:
    counts, possible = torch.bincount(drawn, minlength=VOCAB), probs > 0
    assert counts[~possible].sum() == 0
    expected = probs[possible].double()
    assert chisquare(counts[possible], expected / expected.sum() * len(drawn)).pvalue > 1e-3
