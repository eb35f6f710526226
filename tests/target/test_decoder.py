"""The draft's decoder layers: the target's own, without its embeddings."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from clover.errors import UserError
from clover.target import TargetModel
from clover.target.decoder import DecoderStack, input_norm
from tests.families import FAMILIES, HIDDEN, VOCAB, captured_input, tiny_config, tiny_model

EXACT = {"rtol": 1e-6, "atol": 1e-8}


def decoder_for(target: TargetModel, num_layers: int = 2) -> DecoderStack:
    decoder = DecoderStack(json.loads(json.dumps(target.config.to_dict())), num_layers).to(target.dtype)
    decoder.copy_last_layer(target)
    decoder.final_norm.load_state_dict(target.final_norm.state_dict())
    return decoder.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_one_copied_layer_does_what_the_last_layer_does(family: str) -> None:
    target = TargetModel(tiny_model(family))
    with captured_input(target.layers[-1]) as inputs:
        expected = target.train_forward(torch.randint(VOCAB, (2, 6))).hidden
    with torch.no_grad():
        actual = decoder_for(target, 1)(inputs[0])
    torch.testing.assert_close(actual, expected, **EXACT)


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_with_a_cache_equal_the_whole_text(family: str) -> None:
    decoder = decoder_for(TargetModel(tiny_model(family)))
    inputs = torch.randn(2, 7, HIDDEN, dtype=torch.float64)
    cache = decoder.new_cache(2, 2)
    with torch.no_grad():
        whole = decoder(inputs)
        run_step(decoder, cache, inputs[:, :3], [3, 1])
        steps = torch.stack([inputs[0, 3:7], inputs[1, 1:5]])
        outputs = run_step(decoder, cache, steps, [4, 4])
    torch.testing.assert_close(outputs, torch.stack([whole[0, 3:7], whole[1, 1:5]]), **EXACT)


def run_step(decoder: DecoderStack, cache: Any, inputs: Tensor, counts: list[int]) -> Tensor:
    added = inputs.shape[1]
    cache.begin(added)
    output = decoder(inputs, cache.positions(added), cache.causal_mask(added), cache)
    cache.commit(counts)
    return output


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lone_token_sees_of_those_before_it_what_its_mask_says(family: str) -> None:
    decoder = decoder_for(TargetModel(tiny_model(family)), 1)
    inputs = torch.randn(
        1, 5, HIDDEN, dtype=torch.float64
    )  # two of text, two children of it, a child of the first
    cache = decoder.new_cache(1, 2)
    with torch.no_grad():
        expected = decoder(inputs[:, [0, 1, 2, 4]])[:, -1:]
        run_step(decoder, cache, inputs[:, :2], [2])
        tree = torch.eye(2, dtype=torch.bool)[None]
        cache.begin(2)
        decoder(inputs[:, 2:4], torch.tensor([[2, 2]]), cache.attention_mask(tree), cache)
        lone = cache.attention_mask(torch.tensor([[[True, False, True]]]))
        cache.begin(1, after=2)
        actual = decoder(inputs[:, 4:], torch.tensor([[3]]), lone, cache)
    torch.testing.assert_close(actual, expected, **EXACT)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_input_norm_is_the_one_that_attention_has_to_itself(family: str) -> None:
    decoder = DecoderStack(tiny_config(family), 1)
    layer, seen = decoder.layers[0], []
    decoder(torch.randn(1, 1, HIDDEN))
    for name, child in layer.named_children():
        child.register_forward_pre_hook(lambda _, args, name=name: seen.append((name, *args[:1])))
    with captured_input(layer) as inputs:
        decoder(torch.randn(1, 3, HIDDEN))
    first, *vectors = seen[0]
    reads_input = bool(vectors) and torch.equal(vectors[0], inputs[-1])
    assert input_norm(layer) == (first if reads_input and family not in ("phi", "cohere") else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_outer_norms_the_size_of_a_vector_counts(family: str) -> None:
    decoder = DecoderStack(tiny_config(family), 1)
    names = {name for name, _ in decoder.named_parameters()}
    norm = input_norm(decoder.layers[0])
    decoder.remove_outer_norms()
    gone = names - {name for name, _ in decoder.named_parameters()}
    assert all("norm" in name or "ln_" in name for name in gone)
    assert any(f".{norm}." in name for name in gone) == (norm is not None)
    inputs = torch.randn(1, 3, HIDDEN)
    with torch.no_grad(), captured_input(decoder.layers[0]) as seen:
        small, large = decoder(inputs), decoder(100 * inputs)
    torch.testing.assert_close(seen[-1], 100 * inputs)
    assert large.std() > 20 * small.std()


@pytest.mark.parametrize("family", FAMILIES)
def test_training_reaches_every_weight(family: str) -> None:
    decoder = DecoderStack(tiny_config(family), 2).train()
    inputs = torch.randn(2, 5, HIDDEN, requires_grad=True)
    decoder(inputs, torch.arange(5).expand(2, -1)).square().mean().backward()
    assert inputs.grad is not None and inputs.grad.abs().sum() > 0
    idle = [name for name, weight in decoder.named_parameters() if weight.grad is None]
    assert not idle and all(weight.requires_grad for weight in decoder.parameters())
    assert sum(weight.numel() for weight in decoder.parameters()) < 2 * 17 * HIDDEN**2


@pytest.mark.parametrize("family", ["llama", "gemma", "granite", "opt"])
def test_training_under_bf16_autocast(family: str) -> None:
    decoder = DecoderStack(tiny_config(family), 1).train()
    inputs = torch.randn(2, 5, HIDDEN)
    exact = decoder(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = decoder(inputs)
    output.float().square().mean().backward()
    assert all(
        weight.grad is not None and weight.grad.dtype == torch.float32 for weight in decoder.parameters()
    )
    torch.testing.assert_close(output.float(), exact, rtol=0.1, atol=0.1)


def test_padding_on_the_right_changes_nothing() -> None:
    decoder = DecoderStack(tiny_config("llama"), 2).double().eval()
    inputs = torch.randn(1, 6, HIDDEN, dtype=torch.float64)
    padded = inputs.clone()
    padded[:, 4:] = 7.0
    torch.testing.assert_close(decoder(inputs)[:, :4], decoder(padded)[:, :4], **EXACT)


@pytest.mark.parametrize("family", FAMILIES)
def test_input_scale_is_undone(family: str) -> None:
    decoder = DecoderStack(tiny_config(family), 1)
    inputs = torch.randn(1, 3, HIDDEN)
    with captured_input(decoder.layers[0]) as seen:
        decoder(inputs)
    torch.testing.assert_close(seen[-1], inputs)


def test_layers_are_of_the_kind_of_the_last_one() -> None:
    config = tiny_config("gemma3_text")
    config.layer_types = ["full_attention", "sliding_attention"]
    assert DecoderStack(config, 3).stack.config.layer_types == ["sliding_attention"] * 3
    assert config.layer_types == ["full_attention", "sliding_attention"]
    smol = DecoderStack(tiny_config("smollm3"), 1)
    assert smol.stack.config.no_rope_layers == [1]


def test_structure_needs_no_weights() -> None:
    for family in FAMILIES:
        with torch.device("meta"):
            decoder = DecoderStack(tiny_config(family), 2)
        assert "norm" in type(decoder.final_norm).__name__.lower()


class Wrapper(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.decoder = DecoderStack(config.target_config, 2)
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        pass


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gemma3_text"])
def test_saved_inside_another_model_it_comes_back(family: str, tmp_path: Path) -> None:
    target = TargetModel(tiny_model(family, torch.float32))
    model = Wrapper(PretrainedConfig(target_config=target.config.to_dict())).eval()
    model.decoder.copy_last_layer(target)
    model.save_pretrained(tmp_path)
    again = Wrapper.from_pretrained(tmp_path).eval()
    inputs = torch.randn(1, 4, HIDDEN)
    torch.testing.assert_close(again.decoder(inputs), model.decoder(inputs))


def test_layers_of_another_model_are_refused() -> None:
    with pytest.raises(UserError, match="layers do not fit qwen3"):
        DecoderStack(tiny_config("llama"), 1).copy_last_layer(TargetModel(tiny_model("qwen3")))
    with pytest.raises(UserError, match="opt has embeddings of another width"):
        config = tiny_config("opt")
        config.word_embed_proj_dim = 16
        DecoderStack(config, 1)
    with pytest.raises(UserError, match="draft layers like the target's"):
        DecoderStack({"model_type": "nonesuch"}, 1)
