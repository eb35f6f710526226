"""What cannot be run losslessly is refused by name, before weights are loaded."""

import pytest
import transformers as hf
from transformers import AutoModelForCausalLM, PretrainedConfig

from clover.errors import UserError
from clover.target import TargetModel
from clover.target.support import attention_of, check_config, longest_run
from tests.families import CONTEXT, FAMILIES, tiny_config

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (hf.T5Config(), "t5 is an encoder-decoder"),
        (hf.Florence2Config(), "florence2 is an encoder-decoder"),
        (hf.Qwen3_5Config(), "qwen3_5: layer 0 is of the type linear_attention"),
        (hf.Qwen2AudioConfig(), "qwen2_audio is not a causal language model"),
        (hf.Qwen3NextConfig(), "qwen3_next: layer 0 is of the type linear_attention"),
        (hf.MambaConfig(), "mamba: layer 0 is of the type linear_attention"),
        (hf.RecurrentGemmaConfig(), "recurrent_gemma: layer 0"),
        (hf.Lfm2Config(layer_types=["full_attention", "conv"], num_hidden_layers=2), "lfm2: layer 1 .* conv"),
        (hf.RwkvConfig(), "rwkv .* recurrent state"),
        (hf.ViTConfig(), "vit is not a causal language model"),
    ],
)
def test_refused_before_weights_are_loaded(config: PretrainedConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_config(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (hf.FalconConfig(**SMALL, alibi=True), "falcon .*token tree"),
        (
            hf.BloomConfig(hidden_size=16, n_layer=2, n_head=2, vocab_size=32),
            "bloom: Clover needs exactly one norm",
        ),
        (hf.MptConfig(d_model=16, n_layers=2, n_heads=2, vocab_size=32), "mpt .*token tree"),
        (hf.BertConfig(**SMALL, intermediate_size=32), "bert fills no key-value cache"),
        (
            hf.BertConfig(**SMALL, intermediate_size=32, is_decoder=True),
            "bert: Clover needs exactly one norm",
        ),
    ],
)
def test_refused_by_the_probe(config: PretrainedConfig, message: str) -> None:
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention_of(config))
    with pytest.raises(UserError, match=message):
        TargetModel(model)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sliding_window", "abc"),
        ("sliding_window", 64.5),
        ("attention_chunk_size", "x"),
        ("logit_scale", "x"),
        ("logits_scaling", [2.0]),
        ("final_logit_softcapping", "x"),
        ("original_max_position_embeddings", "x"),
        ("eos_token_id", [[1]]),
        ("eos_token_id", "</s>"),
    ],
)
def test_fields_that_transformers_does_not_check(field: str, value: object) -> None:
    config = tiny_config("llama")
    vars(config)[field] = value
    with pytest.raises(UserError, match=f"llama: {field}.* is .*; it must be"):
        check_config(config)


def test_rotary_fields_that_transformers_does_not_check() -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = hf.LlamaConfig(**SMALL, rope_parameters=dynamic | {"original_max_position_embeddings": "x"})
    with pytest.raises(
        UserError, match=r"llama: rope_parameters\.0\.original_max_position_embeddings is 'x'"
    ):
        check_config(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_supported_families(family: str) -> None:
    config = tiny_config(family)
    check_config(config)
    window = {"mistral": 12, "gemma3_text": 10, "starcoder2": 9}.get(family)
    expected = (window, "window of layer 0 (sliding_attention)") if window else (CONTEXT, "context")
    assert longest_run(config, inside_windows=True) == expected
    assert longest_run(config, inside_windows=False) == (CONTEXT, "context")


SLIDING = ["full_attention", "sliding_attention"]
CHUNKED = ["full_attention", "full_attention", "chunked_attention"]


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (
            hf.MistralConfig(sliding_window=64),
            "window of layer 0 (sliding_attention)",
        ),
        (hf.Phi3Config(sliding_window=64), "window of layer 0 (sliding_attention)"),
        (
            hf.Gemma3TextConfig(sliding_window=64, num_hidden_layers=6),
            "window of layer 0 (sliding_attention)",
        ),
        (
            hf.Qwen2Config(
                use_sliding_window=True, sliding_window=64, max_window_layers=3, num_hidden_layers=5
            ),
            "window of layer 3 (sliding_attention)",
        ),
        (
            hf.Qwen3Config(
                use_sliding_window=True, sliding_window=64, layer_types=SLIDING, num_hidden_layers=2
            ),
            "window of layer 1 (sliding_attention)",
        ),
        (
            hf.Llama4TextConfig(attention_chunk_size=64, layer_types=CHUNKED, num_hidden_layers=3),
            "window of layer 2 (chunked_attention)",
        ),
        (
            hf.Phi3Config(
                hidden_size=16,
                num_attention_heads=4,
                sliding_window=None,
                max_position_embeddings=4096,
                original_max_position_embeddings=64,
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0, 1.0],
                    "long_factor": [2.0, 2.0],
                },
            ),
            "reach of rotary frequencies (longrope)",
        ),
        (
            hf.LlamaConfig(
                max_position_embeddings=64,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            ),
            "context",
        ),
    ],
)
def test_what_sets_the_longest_run(config: PretrainedConfig, limit: str) -> None:
    assert longest_run(config, inside_windows=True) == (64, limit)


def test_window_that_is_switched_off() -> None:
    config = hf.Qwen2Config(use_sliding_window=False, sliding_window=64)
    assert longest_run(config, inside_windows=True) == (config.max_position_embeddings, "context")
    assert config.max_position_embeddings > 64


def test_a_window_too_short_to_probe() -> None:
    config = tiny_config("mistral")
    config.sliding_window = 4
    with pytest.raises(UserError, match="mistral: layer 0 .*sliding_attention.* 4 tokens"):
        TargetModel(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"))
