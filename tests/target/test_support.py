"""What cannot be run losslessly is refused by name, before weights are loaded."""

import pytest
import transformers as hf
from transformers import AutoModelForCausalLM, PretrainedConfig

from clover.errors import UserError
from clover.target import TargetModel
from clover.target.support import check_config, check_run_length
from tests.families import CONTEXT, FAMILIES, tiny_config, tiny_model

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (hf.T5Config(), "t5 is an encoder-decoder"),
        (hf.LlavaConfig(), "llava is a multimodal model .vision_config"),
        (hf.Gemma3Config(), "gemma3 is a multimodal"),
        (hf.Qwen2AudioConfig(), "qwen2_audio is a multimodal model .audio_config"),
        (hf.Qwen3NextConfig(), "qwen3_next: layer 0 is of the type linear_attention"),
        (hf.MambaConfig(), "mamba: layer 0 is of the type linear_attention"),
        (hf.RecurrentGemmaConfig(), "recurrent_gemma: layer 0"),
        (hf.Lfm2Config(layer_types=["full_attention", "conv"], num_hidden_layers=2), "lfm2: layer 1 .* conv"),
        (hf.RwkvConfig(), "rwkv .* recurrent state"),
        (hf.Gemma2Config(), "gemma2 .*SDPA"),
        (hf.BloomConfig(), "bloom .*SDPA"),
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
        (hf.BertConfig(**SMALL, intermediate_size=32), "bert fills no key-value cache"),
        (hf.BertConfig(**SMALL, intermediate_size=32, is_decoder=True), "bert has not one norm"),
    ],
)
def test_refused_by_the_probe(config: PretrainedConfig, message: str) -> None:
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with pytest.raises(UserError, match=message):
        TargetModel(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_supported_families(family: str) -> None:
    config = tiny_config(family)
    check_config(config)
    check_run_length(config, 128)
    with pytest.raises(UserError, match=f"context of {config.model_type} is {CONTEXT}"):
        check_run_length(config, CONTEXT + 1)


SLIDING = ["full_attention", "sliding_attention"]
CHUNKED = ["full_attention", "full_attention", "chunked_attention"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            hf.MistralConfig(sliding_window=64),
            "layer 0 of mistral is of the type sliding_attention and sees only 64",
        ),
        (hf.Phi3Config(sliding_window=64), "layer 0 of phi3 .*sliding_attention"),
        (hf.Gemma3TextConfig(sliding_window=64, num_hidden_layers=6), "layer 0 of gemma3_text .*sliding"),
        (
            hf.Qwen2Config(
                use_sliding_window=True, sliding_window=64, max_window_layers=3, num_hidden_layers=5
            ),
            "layer 3 of qwen2",
        ),
        (
            hf.Qwen3Config(
                use_sliding_window=True, sliding_window=64, layer_types=SLIDING, num_hidden_layers=2
            ),
            "layer 1",
        ),
        (
            hf.Llama4TextConfig(attention_chunk_size=64, layer_types=CHUNKED, num_hidden_layers=3),
            "layer 2 of llama4_text .*chunked_attention",
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
            "longrope.* after 64",
        ),
        (
            hf.LlamaConfig(
                max_position_embeddings=64,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            ),
            "64",
        ),
    ],
)
def test_run_longer_than_a_limit(config: PretrainedConfig, message: str) -> None:
    check_run_length(config, 64)
    with pytest.raises(UserError, match=message):
        check_run_length(config, 65)


def test_window_that_is_switched_off() -> None:
    config = hf.Qwen2Config(use_sliding_window=False, sliding_window=64)
    check_run_length(config, 100)
    assert config.max_position_embeddings > 100


def test_check_run_of_a_target() -> None:
    target = TargetModel(tiny_model("gemma3_text"))
    target.check_run(128)
    with pytest.raises(
        UserError, match="layer 0 of gemma3_text is of the type sliding_attention and sees only 128"
    ):
        target.check_run(129)


def test_a_window_too_short_to_probe() -> None:
    config = tiny_config("mistral")
    config.sliding_window = 4
    with pytest.raises(UserError, match="mistral: layer 0 .*sliding_attention.* 4 tokens"):
        TargetModel(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"))
