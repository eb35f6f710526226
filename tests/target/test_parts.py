"""Halves of decoder layers: put together again they are the layer."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from clover.errors import UserError
from clover.target import TargetModel
from clover.target.decoder import DecoderStack, build_decoder, final_norm, run_decoder, take_final_norm
from clover.target.parts import Half, copy_last_layer_part, keep_half
from clover.target.structure import captured_input
from tests.families import FAMILIES, HIDDEN, VOCAB, tiny_model

PARALLEL = ("gpt_neox", "phi", "cohere")  # attention and MLP read the same input


def part_of(target: TargetModel, half: Half | None, device: str = "cpu") -> DecoderStack:
    with torch.device(device):
        decoder = build_decoder(json.loads(json.dumps(target.config.to_dict())), 1).to(target.dtype)
        take_final_norm(decoder)
        if half:
            keep_half(decoder, half)
    if device == "cpu":
        copy_last_layer_part(target, decoder)
    return decoder.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_halves_together_are_the_layer(family: str) -> None:
    target = TargetModel(tiny_model(family))
    with captured_input(target.layers[-1]) as inputs, captured_input(target.final_norm) as outputs:
        target.train_forward(torch.randint(VOCAB, (2, 6)))
    with torch.no_grad():
        whole = run_decoder(part_of(target, None), inputs[0])
        attended = run_decoder(part_of(target, "attention"), inputs[0])
        mlp = part_of(target, "mlp")
        both = run_decoder(mlp, inputs[0] if family in PARALLEL else attended)
    if family in PARALLEL:
        both += attended - inputs[0]
    exact = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(whole, outputs[0], **exact)
    torch.testing.assert_close(both, whole, **exact)
    assert (attended - inputs[0]).abs().max() > 1e-3 < (whole - attended).abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_half_holds_only_what_it_learns_and_needs_no_weights_to_be_found(family: str) -> None:
    target = TargetModel(tiny_model(family))
    names = []
    for half in ("attention", "mlp"):
        decoder = part_of(target, half)
        run_decoder(decoder, torch.randn(2, 5, HIDDEN, dtype=target.dtype)).square().mean().backward()
        weights = dict(decoder.layers.named_parameters())
        assert all(weight.grad is not None and weight.grad.any() for weight in weights.values()), half
        assert part_of(target, half, "meta").state_dict().keys() == decoder.state_dict().keys()
        names.append(weights.keys())
    whole = dict(part_of(target, None).layers.named_parameters()).keys()
    assert names[0] | names[1] == whole
    shared = {".".join(name.split(".")[1:-1]) for name in names[0] & names[1]}
    assert len(shared) <= (family in PARALLEL)


def test_the_norm_is_taken_out_once() -> None:
    decoder = build_decoder(tiny_model("llama").config, 1)
    norm = final_norm(decoder)
    assert take_final_norm(decoder) is norm
    with pytest.raises(UserError, match="norm"):
        take_final_norm(decoder)


def test_a_layer_of_other_parts_is_refused() -> None:
    decoder = build_decoder(tiny_model("llama").config, 1)
    decoder.layers[0].register_module("cross_attention", type("CrossAttention", (nn.Linear,), {})(2, 2))
    with pytest.raises(UserError, match="use the whole layer"):
        keep_half(decoder, "mlp")
