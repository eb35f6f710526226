"""Faster linear layers on a CPU, by weights packed once for oneDNN.

Verifying a tree multiplies a few rows with every weight matrix. For two to thirty rows the general matrix product reads
a plain weight at a fraction of the memory's speed; from a packed one the same product takes half the time or less, and
so a tree costs little more than a single token. Layers that read the same input (query, key and value; gate and up)
are packed together and run as one product. A single row gains from neither where the layer is small.

The model is left as it is: packed products take the place of the layers' own `forward` only inside a `with` block,
which leaves no trace on them. All users of a layer share its one packed weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.target.rows import HeadRows
from clover.target.structure import swapped_forwards

_Version = tuple[int, int]
_MIN_ELEMENTS = 2**16  # below it the call itself takes longer than the product
_MIN_ELEMENTS_OF_ONE_ROW = 2**18  # and below it where the product has one row only
_MAX_BYTES = 2**30  # a packed weight is a second copy: large models keep their memory
_DTYPES = (torch.float32, torch.bfloat16)
_ROWS = 8  # what the weights are packed for; other numbers of rows work, too
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # names of layers that read one input
_Forward = Callable[[Tensor], Tensor]
_packed: WeakKeyDictionary[nn.Module, tuple[list[_Version], list[_Forward]]] = WeakKeyDictionary()


class PackedLinears:
    """The large linear layers of some modules, with packed weights.

    Where packing does not apply (a GPU, another dtype, a model of more than 1 GiB, a build without oneDNN) the block
    does nothing.

    Args:
        modules: whose layers are looked for. Weights that change later are packed anew by `refresh`.
    """

    def __init__(self, *modules: nn.Module):
        groups = [group for module in modules for part in module.modules() for group in _together(part)]
        grouped = {layer for group in groups for layer in group}
        alone = [
            (m,) for module in modules for m in module.modules() if _is_plain_linear(m) and m not in grouped
        ]
        self._groups: list[tuple[Any, ...]] = list(dict.fromkeys([*groups, *alone]))
        self._versions: list[_Version] = []
        self._forwards: list[tuple[dict[str, Any], _Forward]] = []

    def refresh(self) -> None:
        """Pack the weights, unless they are those that were packed before."""
        versions = [version for group in self._groups for version in _versions(group)]
        if versions == self._versions:
            return
        self._versions, self._forwards = versions, []
        chosen = [group for group in self._groups if _can_pack(group)]
        if sum(layer.weight.nbytes for group in chosen for layer in group) <= _MAX_BYTES:
            for group in chosen:
                self._forwards += [
                    (vars(layer), forward)
                    for layer, forward in zip(group, _shared_forwards(group), strict=True)
                ]

    def active(self) -> AbstractContextManager[None]:
        """Run the layers on their packed weights inside the block."""
        return swapped_forwards(self._forwards)


def _together(module: nn.Module) -> list[tuple[nn.Module, ...]]:
    """Layers of a module that read one input."""
    parts = dict(module.named_children())
    found = [tuple(parts[name] for name in names) for names in _TOGETHER if parts.keys() >= set(names)]
    return [group for group in found if all(map(_is_plain_linear, group)) and _are_alike(group)]


def _are_alike(group: tuple[Any, ...]) -> bool:
    return len({(m.in_features, m.bias is None, m.weight.dtype, m.weight.device) for m in group}) == 1


def _is_plain_linear(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, HeadRows) and not cast(Tensor, module.weight).is_inference()


def _can_pack(group: tuple[Any, ...]) -> bool:
    weight = group[0].weight
    fits = (
        sum(layer.weight.numel() for layer in group) >= _MIN_ELEMENTS
        and weight.dtype in _DTYPES
        and weight.device.type == "cpu"
    )
    untouched = not any("forward" in vars(layer) for layer in group)
    return fits and untouched and torch.backends.mkldnn.is_available()


def _versions(group: tuple[Any, ...]) -> list[_Version]:
    """Change whenever a weight does."""
    return [(layer.weight.data_ptr(), layer.weight._version) for layer in group]


def _shared_forwards(group: tuple[nn.Module, ...]) -> list[_Forward]:
    versions = _versions(group)
    known = _packed.get(group[0])
    if known is None or known[0] != versions:
        known = _packed[group[0]] = (versions, _PackedGroup(group).forwards())
    return known[1]


class _PackedGroup:
    """Layers that read the same input, as one product; or a layer alone."""

    def __init__(self, layers: tuple[Any, ...]):
        self.weights = [layer.weight.detach() for layer in layers]
        self.biases = [layer.bias for layer in layers]
        several = len(self.weights) > 1
        whole = torch.cat(self.weights) if several else self.weights[0]
        self.bias = torch.cat(self.biases) if several and self.biases[0] is not None else self.biases[0]
        # The operator that PyTorch's own compiler puts in the place of a linear layer when weights are frozen.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(whole, _ROWS)
        self.operator = torch.ops.mkldnn._linear_pointwise.default
        self.sizes = [len(weight) for weight in self.weights]
        small = max(weight.numel() for weight in self.weights) < _MIN_ELEMENTS_OF_ONE_ROW
        self.one_row = whole.shape[1] if small else 0  # inputs of so many elements take the plain weights
        self.inputs: Tensor | None = None  # of the last product, until the last layer has its share of it
        self.outputs: Sequence[Tensor] = ()

    def forwards(self) -> list[_Forward]:
        """What takes the place of each layer's `forward`."""
        return [self._forward(index) for index in range(len(self.sizes))]

    def product(self, inputs: Tensor) -> Tensor:
        """The outputs of all layers side by side."""
        return self.operator(inputs, self.packed, self.bias, "none", [], "")

    def _forward(self, index: int) -> _Forward:
        weight, bias, last = self.weights[index], self.biases[index], index == len(self.weights) - 1

        def forward(inputs: Tensor) -> Tensor:
            if inputs.numel() <= self.one_row:
                return F.linear(inputs, weight, bias)
            if last and index == 0:
                return self.product(inputs)
            if index == 0 or inputs is not self.inputs:
                self.inputs, self.outputs = inputs, self.product(inputs).split(self.sizes, dim=-1)
            output = self.outputs[index]
            if last:
                self.inputs, self.outputs = None, ()
            return output

        return forward
