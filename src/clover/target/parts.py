"""Decoder layers of which a draft uses only a part: without the norm at the end, or one half of each layer.

A layer's halves are its attention and its MLP, each with the norms before and behind it and its residual connection.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from clover.errors import UserError, one_line
from clover.target.decoder import DecoderStack
from clover.target.model import TargetModel

Half = Literal["attention", "mlp"]


class _NoAttention(nn.Module):
    """Stands where a layer's attention was and adds nothing to the residual stream."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None


class _NoMLP(nn.Module):
    """Stands where a layer's MLP was and adds nothing to the residual stream."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.zeros_like(hidden_states)


def keep_half(decoder: DecoderStack, half: Half) -> None:
    """Leave one half of every layer; the other half's weights are taken out with the norms that served it alone.

    Works on any device, also on `meta`, where weights are loaded later. With the MLP half, nothing is cached.

    Raises:
        UserError: the layers are not made of one attention and one MLP.
    """
    for layer in decoder.layers:
        attention, mlp = _find_halves(layer)
        if half == "attention":
            for name in mlp[:-1]:
                setattr(layer, name, nn.Identity())
            setattr(layer, mlp[-1], _NoMLP())
        else:
            setattr(layer, attention, _NoAttention())
    try:
        _take_out_idle(decoder)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise _no_halves(decoder.layers[0]) from error


def copy_last_layer_part(target: TargetModel, decoder: DecoderStack) -> None:
    """Set what is left of every layer to the same weights of the target's last layer.

    Raises:
        UserError: the decoder was built for another model.
    """
    last = target.layers[-1].state_dict()
    try:
        for layer in decoder.layers:
            layer.load_state_dict({name: last[name] for name in layer.state_dict()})
    except (KeyError, RuntimeError) as error:
        raise UserError(f"the draft's layers are not those of {target.name}: {one_line(error)}") from error


def _find_halves(layer: nn.Module) -> tuple[str, list[str]]:
    """Names of the layer's attention, and of its MLP, which some families write out as several linear layers."""
    attention, mlp = [], []
    for name, child in layer.named_children():
        kind = type(child).__name__.lower()
        if "attention" in kind:
            attention.append(name)
        elif "norm" not in kind and any(weight.dim() > 1 for weight in child.parameters()):
            mlp.append(name)
    if len(attention) != 1 or not mlp:
        raise _no_halves(layer)
    return attention[0], mlp


def _take_out_idle(decoder: DecoderStack) -> None:
    """Take out norms whose input or whose output was that of what is gone: they have nothing to learn."""
    children = [child for layer in decoder.layers for child in layer.children()]
    fed: set[nn.Module] = set()

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(isinstance(value, Tensor) and value.requires_grad for value in (*args, *kwargs.values())):
            fed.add(module)

    handles = [child.register_forward_pre_hook(record, with_kwargs=True) for child in children]
    try:
        with torch.enable_grad():
            _run_two_tokens(decoder).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    for layer in decoder.layers:
        for name, child in layer.named_children():
            weights = list(child.parameters())
            if weights and (child not in fed or all(weight.grad is None for weight in weights)):
                setattr(layer, name, nn.Identity())
    decoder.zero_grad()


def _run_two_tokens(decoder: DecoderStack) -> Tensor:
    """Without a question that only weights could answer, such as what the mask holds."""
    like = next(decoder.layers.parameters())
    size, place = decoder.stack.config.hidden_size, {"dtype": like.dtype, "device": like.device}
    output = decoder.stack(
        inputs_embeds=torch.ones((1, 2, size), requires_grad=True, **place),
        position_ids=torch.arange(2, device=like.device)[None],
        attention_mask=torch.zeros((1, 1, 2, 2), **place),
        use_cache=False,
    )
    return output.last_hidden_state


def _no_halves(layer: nn.Module) -> UserError:
    return UserError(
        f"{type(layer).__name__} is not made of one attention and one MLP, so a draft cannot use half of it; "
        "use the whole layer"
    )
