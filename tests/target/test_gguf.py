"""A GGUF file is a target: its weights, facts and stop tokens make the model that was written, or are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers as hf

from clover.engine import Engine, Request
from clover.errors import UserError
from clover.target import TargetModel
from tests.families import CONTEXT, HEADS, HIDDEN, LAYERS, VOCAB, tiny_model

_ARCHITECTURES = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_CONFIGS: dict[str, Callable[[], hf.PretrainedConfig]] = {
    "gemma2": lambda: hf.Gemma2Config(**_SIZES, head_dim=8, sliding_window=10, final_logit_softcapping=7.0),
    "gemma3_text": lambda: hf.Gemma3TextConfig(
        **{**_SIZES, "num_hidden_layers": 7}, head_dim=8, sliding_window=10
    ),
    "stablelm": lambda: hf.StableLmConfig(**_SIZES, use_qkv_bias=True),
    "falcon": lambda: hf.FalconConfig(**{**_SIZES, "intermediate_size": None, "num_key_value_heads": None}),
    "nemotron": lambda: hf.NemotronConfig(**_SIZES, head_dim=8),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(**_SIZES, **_EXPERTS, shared_expert_intermediate_size=24),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**_SIZES, **_EXPERTS, head_dim=8, norm_topk_prob=True),
}
FAMILIES = ("llama", "qwen2", "qwen3", "phi3", "starcoder2", "gpt2", *_CONFIGS)


def model_of(family: str, **settings: Any) -> hf.PreTrainedModel:
    """A tiny model; settings replace those of the family."""
    config = _CONFIGS[family]() if family in _CONFIGS else None
    model = tiny_model(family, torch.float32, config=config)
    if settings:
        model = tiny_model(
            family, torch.float32, config=type(model.config)(**{**model.config.to_dict(), **settings})
        )
    return model


def write_gguf(
    model: Any,
    path: str | Path,
    merge: str = '! "',
    pre: str | None = "gpt-2",
    add: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> None:
    """Write a model as llama.cpp's converter does; `add` adds facts or tensors, and replaces those of its names."""
    config = model.config
    architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    _add_sizes(writer, config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*(chr(33 + number) for number in range(config.vocab_size - 1)), '!"'])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges([merge])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    add(writer)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            _add_tensor(writer, names, name, tensor.float(), config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "ffn_hidden_size", None)
    writer.add_feed_forward_length(inner or 4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    groups = 1 if config.model_type == "falcon" else getattr(config, "num_key_value_heads", None)
    if groups:
        writer.add_head_count_kv(groups)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"):
        if hasattr(config, name):
            writer.add_layer_norm_eps(getattr(config, name))
    if head := getattr(config, "head_dim", None):
        writer.add_key_length(head)
        writer.add_value_length(head)
    rotary = getattr(config, "rope_parameters", None)
    if rotary:
        rotary = rotary.get("full_attention", rotary)
        head = head or config.hidden_size // config.num_attention_heads
        writer.add_rope_freq_base(rotary["rope_theta"])
        writer.add_rope_dimension_count(int(head * rotary.get("partial_rotary_factor", 1.0)))
    if window := getattr(config, "sliding_window", None):
        writer.add_sliding_window(window)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if cap := getattr(config, name, None):
            getattr(writer, f"add_{name}")(cap)
    if experts := getattr(config, "num_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if shared := getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(shared)


def _add_tensor(writer: gguf.GGUFWriter, names: Any, name: str, tensor: torch.Tensor, config: Any) -> None:
    """Add a weight in the way of llama.cpp's converter."""
    module, _, kind = name.rpartition(".")
    if module.endswith(".experts"):
        layer = module.split(".")[2]
        parts = (
            {"down_exps": tensor}
            if kind == "down_proj"
            else dict(zip(("gate_exps", "up_exps"), tensor.chunk(2, dim=1), strict=True))
        )
        for part, values in parts.items():
            writer.add_tensor(f"blk.{layer}.ffn_{part}.weight", values.contiguous().numpy())
        return
    if config.model_type == "llama" and module.endswith(("q_proj", "k_proj")):
        heads = config.num_attention_heads if module.endswith("q_proj") else config.num_key_value_heads
        split = tensor.view(heads, 2, -1, *tensor.shape[1:])
        tensor = split.transpose(1, 2).reshape(tensor.shape)
    if config.model_type in ("gemma2", "gemma3_text", "nemotron") and name.endswith("norm.weight"):
        tensor = tensor + 1
    if config.model_type == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        tensor = tensor.T
    if name.endswith("shared_expert_gate.weight"):
        tensor = tensor[0]
    ours = names.get_name(module) or names.get_name(module.partition(".")[2])
    writer.add_tensor(f"{ours}.{kind}", tensor.contiguous().numpy())


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def assert_same_text(model: hf.PreTrainedModel, path: Path) -> TargetModel:
    """The file's model gives the logits of the one that was written, also where windows and scaling matter."""
    target = TargetModel.load(path, dtype="float32")
    tokens = torch.arange(3, 3 + CONTEXT - 2)[None] % VOCAB
    torch.testing.assert_close(logits(target.model, tokens), logits(model, tokens), rtol=1e-4, atol=1e-4)
    return target


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_reads_as_it_was_written(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    write_gguf(model, tmp_path / "x.gguf")
    target = assert_same_text(model, tmp_path / "x.gguf")
    assert target.eos_token_ids[:2] == (2, 5)


def _linear(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)


def _yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(16)


def _llama3(head: int, settings: dict[str, float]) -> Callable[[gguf.GGUFWriter], None]:
    """The tensor that the converter makes of Llama-3.1's scaling."""
    low = settings["original_max_position_embeddings"] / settings["low_freq_factor"]
    high = settings["original_max_position_embeddings"] / settings["high_freq_factor"]
    factors = []
    for wave in (2 * math.pi * settings["rope_theta"] ** (index / head) for index in range(0, head, 2)):
        smooth = (settings["original_max_position_embeddings"] / wave - settings["low_freq_factor"]) / (
            settings["high_freq_factor"] - settings["low_freq_factor"]
        )
        between = 1 / ((1 - smooth) / settings["factor"] + smooth)
        factors.append(1.0 if wave < high else settings["factor"] if wave > low else between)
    return lambda writer: writer.add_tensor("rope_freqs.weight", torch.tensor(factors).numpy())


_OF_LLAMA3 = {"rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("original", [8192, 16])
def test_llama3s_factors_are_followed(original: int, tmp_path: Path) -> None:
    settings = {**_OF_LLAMA3, "original_max_position_embeddings": original}
    rotary = {"rope_type": "llama3", **settings}
    model = model_of("llama", rope_parameters=rotary)
    write_gguf(model, tmp_path / "x.gguf", add=_llama3(HIDDEN // HEADS, settings))
    target = assert_same_text(model, tmp_path / "x.gguf")
    if original == 8192:
        assert target.config.rope_parameters == pytest.approx(rotary)


@pytest.mark.parametrize(("add", "rotary"), [
    (_linear, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0}), (_yarn, _YARN),
])  # fmt: skip
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_scaled_frequencies_are_followed(
    family: str, add: Any, rotary: dict[str, Any], tmp_path: Path
) -> None:
    model = model_of(family, rope_parameters=rotary)
    write_gguf(model, tmp_path / "x.gguf", add=add)
    assert_same_text(model, tmp_path / "x.gguf")


def test_gemma3_scales_only_the_layers_without_a_window(tmp_path: Path) -> None:
    full = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    rotary = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    layers = ["sliding_attention", "full_attention"]
    model = model_of("gemma3_text", rope_parameters=rotary, num_hidden_layers=2, layer_types=layers)

    def add(writer: gguf.GGUFWriter) -> None:
        _linear(writer)
        writer.add_sliding_window_pattern([True, False])

    write_gguf(model, tmp_path / "x.gguf", add=add)
    assert_same_text(model, tmp_path / "x.gguf")


def test_phi3s_lists_of_factors_are_followed(tmp_path: Path) -> None:
    count = HIDDEN // HEADS // 2
    short, long = [1.0 + 0.1 * number for number in range(count)], [2.0 + number for number in range(count)]
    rotary = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long,
        "attention_factor": 1.2, "original_max_position_embeddings": 16,
    }  # fmt: skip
    model = model_of("phi3", rope_parameters=rotary, original_max_position_embeddings=16)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_orig_ctx_len(16)
        writer.add_rope_scaling_attn_factors(1.2)
        writer.add_tensor("rope_factors_short.weight", torch.tensor(short).numpy())
        writer.add_tensor("rope_factors_long.weight", torch.tensor(long).numpy())

    write_gguf(model, tmp_path / "x.gguf", add=add)
    target = TargetModel.load(tmp_path / "x.gguf", dtype="float32")
    for length in (10, 30):
        tokens = torch.arange(3, 3 + length)[None]
        torch.testing.assert_close(logits(target.model, tokens), logits(model, tokens), rtol=1e-4, atol=1e-4)


def test_factors_of_another_number_are_refused(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", torch.full((HIDDEN // HEADS // 4,), 2.0).numpy())

    write_gguf(model_of("llama"), tmp_path / "x.gguf", add=add)
    with pytest.raises(UserError, match="does not have one rotary factor for each of 4 frequencies"):
        TargetModel.load(tmp_path / "x.gguf", dtype="float32")


def test_equal_factors_and_linear_scaling_come_together(tmp_path: Path) -> None:
    rotary = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 16.0}

    def add(writer: gguf.GGUFWriter) -> None:
        _linear(writer)
        writer.add_tensor("rope_freqs.weight", torch.full((HIDDEN // HEADS // 2,), 2.0).numpy())

    model = model_of("llama", rope_parameters=rotary)
    write_gguf(model, tmp_path / "x.gguf", add=add)
    assert assert_same_text(model, tmp_path / "x.gguf").config.rope_parameters == rotary


@pytest.mark.parametrize(("family", "settings"), [
    ("starcoder2", {"rope_parameters": {"rope_type": "default", "rope_theta": 999999.4}}),
    ("phi3", {"sliding_window": 11}),
    ("gemma2", {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 20.0}),
    ("qwen3", {"head_dim": 6}),
    ("llama", {"head_dim": 12, "rms_norm_eps": 1e-3, "attention_bias": True}),
    ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
])  # fmt: skip
def test_facts_of_finetuned_models_are_followed(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = model_of(family, **settings)
    write_gguf(model, tmp_path / "x.gguf")
    assert_same_text(model, tmp_path / "x.gguf")


@pytest.mark.parametrize(("family", "add", "named"), [
    ("llama", lambda w: w.add_final_logit_softcapping(30.0), "llama.final_logit_softcapping = 30"),
    ("llama", lambda w: w.add_sliding_window(8), "llama.attention.sliding_window = 8"),
    ("qwen2", lambda w: w.add_sliding_window(8), "sliding_window"),
    ("qwen2", lambda w: w.add_key_length(12), "qwen2.attention.key_length = 12"),
    ("llama", lambda w: w.add_expert_count(8), "llama.expert_count = 8"),
    ("llama", lambda w: w.add_logit_scale(0.5), "llama.logit_scale = 0.5"),
    ("llama", lambda w: w.add_float32("llama.a_new_fact", 0.5), "llama.a_new_fact = 0.5"),
    ("llama", lambda w: w.add_rope_dimension_count(4), "llama.rope.dimension_count = 4"),
    ("llama", lambda w: w.add_bool("llama.attention.causal", False), "llama.attention.causal = False"),
    ("llama", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "scaling of its rotary"),
    ("llama", lambda w: w.add_tensor("blk.0.attn_sinks.weight", torch.ones(4).numpy()), "blk.0.attn_sinks.weight"),
    ("qwen2", lambda w: w.add_tensor("output.bias", torch.ones(VOCAB).numpy()), "output.bias"),
])  # fmt: skip
def test_facts_and_tensors_that_the_model_would_drop_are_refused(
    family: str, add: Any, named: str, tmp_path: Path
) -> None:
    def replace(writer: gguf.GGUFWriter) -> None:
        for fields in writer.kv_data:
            for key in ("llama.rope.dimension_count", "qwen2.attention.key_length"):
                fields.pop(key, None)
        add(writer)

    write_gguf(model_of(family), tmp_path / "x.gguf", add=replace)
    with pytest.raises(UserError, match=named):
        TargetModel.load(tmp_path / "x.gguf")


def test_a_weight_without_a_tensor_is_refused(tmp_path: Path) -> None:
    model = model_of("llama")
    model.config.num_hidden_layers = 3
    write_gguf(model, tmp_path / "x.gguf")
    with pytest.raises(UserError, match=r"it has no tensor blk\.2\."):
        TargetModel.load(tmp_path / "x.gguf")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_quantised_tensors_are_unpacked(kind: str, tmp_path: Path) -> None:
    model = model_of("llama", hidden_size=64, intermediate_size=64)
    plain = gguf.GGUFWriter.add_tensor
    quantised = getattr(gguf.GGMLQuantizationType, kind)

    class Writer(gguf.GGUFWriter):
        def add_tensor(self, name: str, tensor: Any, *args: Any, **options: Any) -> None:
            if tensor.ndim == 1:
                return plain(self, name, tensor)
            packed = gguf.quantize(tensor, quantised)
            return plain(self, name, packed, raw_dtype=quantised)

    original, gguf.GGUFWriter = gguf.GGUFWriter, Writer
    try:
        write_gguf(model, tmp_path / "x.gguf")
    finally:
        gguf.GGUFWriter = original
    target = TargetModel.load(tmp_path / "x.gguf", dtype="float32")
    for name, weight in model.state_dict().items():
        found = target.state_dict()[name]
        assert (found - weight).norm() <= 0.15 * weight.norm()


def test_the_directory_of_a_file_is_the_same_target(tmp_path: Path) -> None:
    model = model_of("llama")
    write_gguf(model, tmp_path / "m.gguf")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')  # which changes nothing
    original, target = TargetModel(model), TargetModel.load(tmp_path, dtype="float32")
    assert target.tokenizer is not None
    prompt = (3, 7, 11, 13)
    found, expected = (
        [e.generation.tokens for e in Engine(each).run([Request(prompt, 12, eos=())]) if e.generation]
        for each in (target, original)
    )
    assert found == expected
