"""What `custom_generate=clover.speculative(draft)` refuses, and what it leaves of the model as it was."""

import copy
import gc
import pickle
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

import clover
from clover.errors import UserError
from clover.target import TargetModel
from clover.target.structure import cache_argument, cache_of
from tests.families import tiny_model
from tests.integrations.small import Spread, batch, draft_for, tokenizer


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def fast(llama):
    return clover.speculative(draft_for(llama), tree="chain:3")


# -- what cannot be honoured -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"num_beams": 2, "do_sample": True}, "beam_sample"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation"),
        ({"guidance_scale": 2.0}, "UnbatchedClassifierFreeGuidanceLogitsProcessor"),
        ({"logits_processor": [Spread()]}, r"Spread \(if it looks at .* processors=\[Spread\]\)"),
        ({"stop_strings": ["B"], "tokenizer": tokenizer()}, "tokenizer"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"use_cache": False}, "use_cache"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"position_ids": torch.arange(7).expand(4, 7)}, "position_ids"),
        ({"max_new_tokens": 300}, "lower max_new_tokens or max_length by 51"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 0]] * 4)}, "padding_side='left'"),
        ({"attention_mask": torch.tensor([[1, 0, 1, 1, 1, 1, 1]] * 4)}, "padding_side='left'"),
    ],
)
def test_what_cannot_be_honoured_is_named(llama, fast, options, named):
    with pytest.raises(UserError, match=named):
        llama.generate(**{**batch(), "max_new_tokens": 5, **options}, custom_generate=fast)


def test_other_inputs_and_models_are_refused(llama, fast):
    one, states = torch.tensor([[5]]), torch.zeros(1, 3, 32, dtype=torch.float64)
    cache = cache_of(llama(torch.tensor([[5, 9]]), use_cache=True))
    name = cache_argument(llama)
    for model, inputs, named in (
        (llama, {"inputs": torch.tensor([[5, 9, 33]]), name: cache}, name),
        (llama, {"inputs_embeds": states}, "inputs_embeds"),
        (tiny_model("gpt2"), {"inputs": one, "token_type_ids": one}, "token_type_ids"),
    ):
        with pytest.raises(UserError, match=named):
            model.generate(**inputs, max_new_tokens=2, custom_generate=fast)


# -- the model and the draft -------------------------------------------------------------------------------------------


def test_model_is_probed_once_and_left_as_it_was(monkeypatch):
    model, made = tiny_model("llama"), []
    draft = draft_for(model)
    model.requires_grad_(True)
    start = TargetModel.__init__
    monkeypatch.setattr(TargetModel, "__init__", lambda self, *args: made.append(1) or start(self, *args))
    for _ in range(2):
        model.generate(**batch(), max_new_tokens=2, custom_generate=clover.speculative(draft))
    assert len(made) == 1
    assert all(weight.requires_grad for weight in model.parameters())
    assert "forward" not in vars(model)
    assert not vars(copy.deepcopy(model))["_clover_engines"].engines
    assert not vars(pickle.loads(pickle.dumps(model)))["_clover_engines"].engines


def test_nothing_outlives_the_model():
    model = tiny_model("llama")
    fast = clover.speculative(draft_for(tiny_model("llama")))
    model.generate(**batch(), max_new_tokens=2, custom_generate=fast)
    gone = weakref.ref(model)
    fast.draft.bind(TargetModel(tiny_model("llama")))
    del model
    gc.collect()
    assert gone() is None


def test_drafts_of_earlier_calls_are_not_kept(llama):
    drafts = []
    for _ in range(4):
        fast = clover.speculative(draft_for(llama), tree="chain:2")
        llama.generate(**batch(), max_new_tokens=2, custom_generate=fast)
        drafts.append(weakref.ref(fast.draft))
    del fast
    gc.collect()
    assert [one() is None for one in drafts] == [True, True, False, False]


def test_draft_from_a_directory_is_read_once(llama, tmp_path: Path):
    draft_for(llama).save_pretrained(tmp_path / "draft")
    expected = llama.generate(**batch(), max_new_tokens=8)
    for _ in range(2):
        fast = clover.speculative(tmp_path / "draft", tree="chain:2")
        assert llama.generate(**batch(), max_new_tokens=8, custom_generate=fast).equal(expected)
        shutil.rmtree(tmp_path / "draft", ignore_errors=True)


def test_a_moved_model_is_set_up_anew():
    model = tiny_model("llama")
    fast = clover.speculative(draft_for(model))
    model.generate(**batch(), max_new_tokens=2, custom_generate=fast)
    model.float()
    with pytest.raises(UserError, match="move the draft"):
        model.generate(**batch(), max_new_tokens=2, custom_generate=fast)
    fast.draft.float()
    assert model.generate(**batch(), max_new_tokens=2, custom_generate=fast).shape == (4, 9)


def test_models_that_do_not_fit(llama):
    fast = clover.speculative(draft_for(llama))
    model = tiny_model("llama")
    with pytest.raises(UserError, match="training mode"):
        model.train().generate(**batch(), max_new_tokens=2, custom_generate=fast)
    model.eval().set_attn_implementation("eager")
    with pytest.raises(UserError, match="sdpa"):
        model.generate(**batch(), max_new_tokens=2, custom_generate=fast)
    with pytest.raises(UserError, match="model_type"):
        tiny_model("qwen2").generate(**batch(), max_new_tokens=2, custom_generate=fast)
    with pytest.raises(UserError, match="no draft at"):
        llama.generate(**batch(), max_new_tokens=2, custom_generate=clover.speculative("/nowhere"))
