"""Layers that run fewer operators: the same bits, for each kind that is changed, and no change for all others."""

from typing import Any

import pytest
import torch
from torch import nn

from clover.cpu import speed_up
from clover.cpu.apply import shared_copy
from clover.cpu.blocks import Streamlined, streamline
from tests.families import tiny_model


def layers_of(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if hasattr(part, "self_attn")]


def changed(module: nn.Module) -> list[bool]:
    return [isinstance(part, Streamlined) for part in layers_of(module)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
@torch.no_grad()
def test_a_changed_model_gives_the_same_bits(family: str, dtype: torch.dtype) -> None:
    model: Any = tiny_model(family, dtype)
    made: Any = shared_copy(model)
    streamline(made)
    assert all(changed(made)) and not any(changed(model))
    assert made.state_dict().keys() == model.state_dict().keys()
    for rows, tokens in ((1, 1), (1, 26), (3, 7)):
        text = torch.randint(2, 50, (rows, tokens))
        assert torch.equal(made(text, use_cache=False).logits, model(text, use_cache=False).logits)
    before, after = (one(text[:, :4], use_cache=True) for one in (model, made))
    name = "cache" if "cache" in before else "past_key_values"
    more = (
        one(text[:, 4:], use_cache=True, **{name: of[name]}) for one, of in ((model, before), (made, after))
    )
    assert torch.equal(*(each.logits for each in more))


@pytest.mark.parametrize("family", ["qwen3", "phi3", "granite", "olmo2", "gpt_neox"])
def test_layers_of_another_form_stay(family: str) -> None:
    made = shared_copy(tiny_model(family, torch.float32))
    streamline(made)
    assert not any(isinstance(part, Streamlined) for part in made.modules())


class Doubled(nn.Module):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 2 * states


def test_layers_in_training_are_not_tried() -> None:
    """They run their own code, so a trial would compare it with itself."""
    made = shared_copy(tiny_model("phi3", torch.float32).train())
    streamline(made)
    assert not any(changed(made))
    made.eval()(torch.tensor([[3, 4, 5]]), use_cache=False)


def test_each_kind_of_layer_is_tried_for_itself() -> None:
    model: Any = tiny_model("llama", torch.float32)
    count = len(layers_of(model))
    layers_of(model)[0].mlp.act_fn = Doubled()  # type: ignore[union-attr]
    made = shared_copy(model)
    streamline(made)
    assert changed(made) == [True] * count  # another activation changes nothing of the form
    layers_of(model)[0].mlp = Doubled()
    made = shared_copy(model)
    streamline(made)
    assert changed(made) == [False, *[True] * (count - 1)] and count > 1


def test_hooks_and_gradients_see_the_own_code() -> None:
    model: Any = tiny_model("llama", torch.float32)
    seen = list[int]()
    layers_of(model)[0].self_attn.register_forward_hook(lambda *_: seen.append(0))  # type: ignore[operator, union-attr]
    made: Any = shared_copy(model)
    streamline(made)
    assert changed(made) == [False, *[True] * (len(changed(made)) - 1)]
    text = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        made(text, use_cache=False)
    assert seen == [0]
    loss = made(text, use_cache=False).logits.sum()
    loss.backward()
    assert all(weight.grad is not None for weight in made.model.layers.parameters())


def test_speed_up_changes_layers_and_products() -> None:
    made = shared_copy(tiny_model("qwen2", torch.float32))
    speed_up(made)
    assert all(changed(made))
