"""What `custom_generate=clover.speculative(draft)` refuses, and what it leaves of the model as it was."""

import copy
import functools
import gc
import pickle
import shutil
import warnings
import weakref
from pathlib import Path

import accelerate
import pytest
import torch
from torch.utils._pytree import tree_map
from transformers import LlamaForCausalLM, PreTrainedModel

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


def _as_peft_prepares(model, _):
    """Replace the method as PEFT's prompt tuning and p-tuning do."""
    model.prepare_inputs_for_generation = functools.partial(type(model).prepare_inputs_for_generation, model)


def _with_adapter_names(model, _):
    """Hook layers as PEFT does for `adapter_names`."""

    def choose(_, args, kwargs, adapter_names):
        return args, kwargs

    hook = functools.partial(choose, adapter_names=["a", "b", "a", "b"])
    model.model.layers[0].mlp.up_proj.register_forward_pre_hook(hook, with_kwargs=True)


def _added_later(model, _):
    model.model.layers[1].mlp.train()


def _quantised_dynamically(model, _):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    model.eval()


def _offloaded(model, folder):
    accelerate.disk_offload(model, folder)


@pytest.mark.parametrize(("change", "named"), [
    (_as_peft_prepares, "a prepare_inputs_for_generation that is not the model's class's own"),
    (_with_adapter_names, "adapter_names choose an adapter for each row"),
    (_added_later, r"training mode \(its part model\.layers\.1\.mlp"),
    (_quantised_dynamically, r"q_proj is a quantized layer of torch\.ao \(Linear\)"),
    (_offloaded, "its lm_head is offloaded .to disk or CPU memory.; load the model whole"),
])  # fmt: skip
def test_models_that_would_write_another_text_are_refused(change, named, tmp_path: Path):
    model = tiny_model("llama", torch.float32)
    change(model, tmp_path)
    with pytest.raises(UserError, match=named):
        model.generate(**batch(), max_new_tokens=2, custom_generate=clover.speculative(tree="lookup"))


def test_a_class_with_a_method_of_its_own_is_refused(llama):
    class Prepares(LlamaForCausalLM):
        def prepare_inputs_for_generation(self, *args, **kwargs):
            return super().prepare_inputs_for_generation(*args, **kwargs)

    model = Prepares(llama.config).eval()
    with pytest.raises(UserError, match="prepare_inputs_for_generation"):
        model.generate(**batch(), max_new_tokens=2, custom_generate=clover.speculative(tree="lookup"))


class Halves(torch.Tensor):
    """A weight in bfloat16 that counts as float32, built as the quantized tensors of torchao are."""

    @staticmethod
    def __new__(cls, stored):
        return torch.Tensor._make_wrapper_subclass(
            cls, stored.shape, dtype=torch.float32, device=stored.device
        )

    def __init__(self, stored):
        self.stored = stored

    def __tensor_flatten__(self):
        return ["stored"], {}

    def dequantize(self):
        return self.stored.float()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].stored)
        if function.name().partition("::")[2] not in ("linear", "t", "mm", "addmm"):
            raise NotImplementedError(f"{function} of a quantized weight")
        plain = tree_map(lambda one: one.dequantize() if isinstance(one, cls) else one, args)
        return function(*plain, **(kwargs or {}))


def test_quantised_weights_run_with_and_without_a_draft():
    model = tiny_model("llama", torch.float32)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight = torch.nn.Parameter(Halves(layer.weight.detach().bfloat16()), requires_grad=False)
    expected = model.generate(**batch(), max_new_tokens=12)
    draft = draft_for(model)
    for fast in (clover.speculative(tree="lookup"), clover.speculative(draft, tree="chain:3")):
        assert model.generate(**batch(), max_new_tokens=12, custom_generate=fast).equal(expected)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.stored.mul_(1.5)  # copies and fingerprints follow
    changed = model.generate(**batch(), max_new_tokens=12)
    assert not changed.equal(expected)
    assert model.generate(
        **batch(), max_new_tokens=12, custom_generate=clover.speculative(tree="lookup")
    ).equal(changed)


@pytest.mark.parametrize(("argument", "named"), [("weights", '"int8"'), ("exact", "True")])
def test_what_only_load_has_is_answered_by_its_name(argument, named):
    with pytest.raises(UserError, match=rf"clover\.load\(DIR, {argument}={named}\)"):
        clover.speculative(tree="lookup", **{argument: named.strip('"')})


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
