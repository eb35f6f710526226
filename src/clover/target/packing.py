"""Faster linear layers on a CPU, by weights packed once for oneDNN.

Verifying a tree multiplies a few rows with every weight matrix. For two to thirty rows the general matrix product reads
a plain weight at a fraction of the memory's speed; from a packed one the same product takes half the time or less, and
so a tree costs little more than a single token.

The model is left as it is: packed products take the place of the layers' own `forward` only inside a `with` block,
which leaves no trace on them. All users of a layer share its one packed weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_Version = tuple[int, int]
_MIN_ELEMENTS = 2**18  # below it the call itself takes longer than the product
_MAX_BYTES = 2**30  # a packed weight is a second copy: large models keep their memory
_DTYPES = (torch.float32, torch.bfloat16)
_packed: WeakKeyDictionary[nn.Module, tuple[_Version, Callable[[Tensor], Tensor]]] = WeakKeyDictionary()
_ROWS = 8  # what the weights are packed for; other numbers of rows work, too


class PackedLinears:
    """The large linear layers of some modules, with packed weights.

    Where packing does not apply (a GPU, another dtype, a model of more than 1 GiB, a build without oneDNN) the block
    does nothing.

    Args:
        modules: whose layers are looked for. Weights that change later are packed anew by `refresh`.
    """

    def __init__(self, *modules: nn.Module):
        found = [m for module in modules for m in module.modules() if _is_plain_linear(m)]
        self._layers: list[Any] = list(dict.fromkeys(found))
        self._versions: list[_Version] = []
        self._forwards: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = []

    def refresh(self) -> None:
        """Pack the weights, unless they are those that were packed before."""
        versions = [_version(m) for m in self._layers]
        if versions == self._versions:
            return
        self._versions, self._forwards = versions, []
        chosen = [m for m in self._layers if _can_pack(m)]
        if sum(m.weight.nbytes for m in chosen) <= _MAX_BYTES:
            self._forwards = [(vars(m), _shared_forward(m)) for m in chosen]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the layers on their packed weights inside the block."""
        for names, forward in self._forwards:
            names["forward"] = forward
        try:
            yield
        finally:
            for names, _ in self._forwards:
                del names["forward"]


def _is_plain_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear and not module.weight.is_inference()


def _can_pack(layer: Any) -> bool:
    weight = layer.weight
    fits = (
        weight.numel() >= _MIN_ELEMENTS
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.device.type == "cpu"
    )
    return fits and "forward" not in vars(layer) and torch.backends.mkldnn.is_available()


def _version(layer: Any) -> _Version:
    """Changes whenever the weight does."""
    return layer.weight.data_ptr(), layer.weight._version


def _shared_forward(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    version = _version(layer)
    known = _packed.get(layer)
    if known is None or known[0] != version:
        known = _packed[layer] = (version, _packed_forward(layer))
    return known[1]


def _packed_forward(layer: Any) -> Callable[[Tensor], Tensor]:
    # The operator that PyTorch's own compiler puts in the place of a linear layer when weights are frozen.
    operators = torch.ops.mkldnn
    packed = operators._reorder_linear_weight(layer.weight.detach(), _ROWS)
    bias, linear = layer.bias, operators._linear_pointwise.default

    def forward(inputs: Tensor) -> Tensor:
        return linear(inputs, packed, bias, "none", [], "")

    return forward
