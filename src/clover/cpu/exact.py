"""Copy a model so that a token has the same bits however many tokens are computed with it.

In the copy, attention is exact in any order (`clover.cpu.whole_attention`), activation functions do not depend on the
place of a number, and linear layers are products of int8 (`clover.cpu.int8`) or products with a fixed number of rows
(`clover.cpu.fixed_rows`). Norms and the softmax of the logits already add each row by itself.

Gradients and compilers use the plain weights, which the new layers share.

Shapes: R rows, O outputs and I inputs of one layer.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from clover.cpu.apply import can_speed_up, layer_groups, shared_copy
from clover.cpu.blocks import streamline
from clover.cpu.elementwise import compute_alike
from clover.cpu.linear import SharedOutputs, is_plain
from clover.cpu.whole_attention import attend_exactly
from clover.errors import UserError

_LINEAR = (nn.Linear, Conv1D)
_TRIED = 32  # rows that are moved to other places
# A product computes outputs [R, O] from rows [R, I] and the dtype of the outputs.
Product = Callable[[Tensor, torch.dtype], Tensor]


class _Shared(SharedOutputs):
    """One product for layers that read the same input."""

    def __init__(self, product: Product, sizes: Sequence[int]):
        super().__init__(sizes)
        self.product: Any = product

    def __call__(self, inputs: Tensor, index: int) -> Tensor:
        """Return the outputs [R, O] of layer `index` for inputs [..., I], in their dtype."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        return self.part(inputs, index, lambda _: self.product(rows, inputs.dtype))


class ExactLayer(nn.Module):
    """A linear layer that shares another one's weights and runs another product, unless gradients are on."""

    def __init__(self, layer: Any, shared: _Shared, index: int):
        super().__init__()
        self.weight, self.bias, self.width = layer.weight, layer.bias, weight_of(layer).shape[1]
        self.training = layer.training
        self._plain = (layer,)  # a tuple keeps nn.Module from registering it a second time
        self.shared, self._index = shared, index

    def forward(self, input: Tensor) -> Tensor:
        """Return outputs [..., O] for inputs [..., I], in their dtype."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._plain[0](input)
        return self.shared(input, self._index).view(*input.shape[:-1], -1)


def exact_layers(layers: Sequence[Any], product: Product) -> list[ExactLayer]:
    """Return new layers for layers that read the same input; `product` computes all outputs side by side."""
    shared = _Shared(product, [len(weight_of(layer)) for layer in layers])
    return [ExactLayer(layer, shared, index) for index, layer in enumerate(layers)]


def weight_of(layer: Any) -> Tensor:
    """Return the weight [O, I] of a linear layer, or of transformers' Conv1D, which stores the transpose."""
    return (layer.weight.T if isinstance(layer, Conv1D) else layer.weight).detach()


def joined_weight(layers: Sequence[Any]) -> Tensor:
    """Return the weights of layers that read the same input as one [O, I]."""
    weights = [weight_of(layer) for layer in layers]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def joined_bias(layers: Sequence[Any]) -> Tensor | None:
    """Return the biases of layers that read the same input as one [O]; None if they have none."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return torch.cat(biases) if len(biases) > 1 else next(iter(biases), None)


@dataclass(frozen=True)
class ExactModel:
    """A copy of a model's structure with `ExactLayer`s.

    Attributes:
        model: the copy; it shares all tensors with the original.
        layers: the new layers of the copy.
        left: the sizes of the weights that stay as they are, by the parameters' names; embeddings are not counted.
    """

    model: Any
    layers: Sequence[ExactLayer]
    left: Mapping[str, int]

    @property
    def products(self) -> list[Any]:
        """Return the distinct objects that compute the layers' outputs; their `product` may be replaced."""
        return list(dict.fromkeys(layer.shared for layer in self.layers))

    @cached_property
    def replaced(self) -> int:
        """Return the size of all weights of the new layers."""
        return sum(layer.weight.numel() for layer in self.layers)

    @property
    def left_words(self) -> str:
        """Return a sentence about the weights that are not in the new layers; "" if all are."""
        if not self.left:
            return ""
        share = (count := sum(self.left.values())) / (count + self.replaced)
        return f"{share:.0%} of the weights are not rounded to int8, such as {next(iter(self.left))}"

    @torch.no_grad()
    def why_uneven(self) -> str | None:
        """Return why the bits of a row depend on its place or on other rows; None if they do not.

        One product of each shape is tried.
        """
        tried = {(layer.weight.shape, layer.weight.dtype): layer for layer in self.layers}
        for (_, dtype), layer in tried.items():
            rows, product = layer.weight.new_empty(_TRIED, layer.width), layer.shared.product
            rows.normal_(generator=torch.Generator().manual_seed(0))
            outputs, turned, alone = (product(some, dtype) for some in (rows, rows.flip(0), rows[-1:]))
            if not torch.equal(outputs, turned.flip(0)) or not torch.equal(outputs[-1:], alone):
                return f"this processor's products of {layer.width:,} numbers depend on the rows beside them"
        return None


def exact_copy(
    model: nn.Module,
    find_parts: Callable[[Any], Collection[nn.Module]],
    make: Callable[[Mapping[str, Sequence[Any]]], Iterable[Sequence[nn.Module]]],
) -> ExactModel:
    """Return an exact copy of a model, with new linear layers in the parts that `find_parts` finds in it.

    `make` gets groups of layers that read the same input, by their place in the model, and returns new layers for each
    group. UserError if the model is not entirely on a CPU, or its weights are quantized.
    """
    _check_model(model)
    copied = shared_copy(model)
    attend_exactly(copied)
    compute_alike(copied)
    parts = [inner for part in find_parts(copied) for inner in part.modules()]
    inside, made = set(parts), list[Any]()
    places = {part: name for name, part in copied.named_modules()}
    groups = [
        (part, names)
        for part, names in layer_groups(copied, _LINEAR)
        if all(getattr(part, name) in inside for name in names)
    ]
    layers = {f"{places[part]}.{names[0]}": [getattr(part, name) for name in names] for part, names in groups}
    for (part, names), new in zip(groups, make(layers), strict=True):
        for name, layer in zip(names, new, strict=True):
            setattr(part, name, layer)
            made.append(layer)
    streamline(copied)
    return ExactModel(copied, made, _left(parts, copied))


def _left(parts: Iterable[nn.Module], whole: nn.Module) -> dict[str, int]:
    """Return the sizes of the matrices that neither a new layer nor a table of embeddings uses."""
    inside = {
        weight
        for part in parts
        if type(part) not in (ExactLayer, *_LINEAR) and not isinstance(part, nn.Embedding)
        for weight in part.parameters(recurse=False)
    }
    return {
        name: weight.numel()
        for name, weight in whole.named_parameters()
        if weight in inside and weight.dim() > 1
    }


def _check_model(model: nn.Module) -> None:
    if not all(map(is_plain, model.parameters())):
        raise UserError("the target's weights are already quantized; leave out int8 weights and --exact")
    if not can_speed_up(model):
        raise UserError(
            "a target whose layers were changed, or spread over devices by device_map, cannot have int8 weights or "
            "--exact; load it on a CPU only"
        )
