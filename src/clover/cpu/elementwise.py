"""Elementwise operators that give a number the same bits at any place of a tensor.

PyTorch computes most numbers of a tensor in vectors, but the last ones of each thread one by one. For some functions
the two results differ in the last bit. That depends on the processor, so it is tried here.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

_SERIAL = 2**14  # numbers for a single thread; PyTorch uses several for more than 2^15
_VECTOR = 64  # a multiple of the length of any vector
_PACKAGES = ("torch.nn.modules.activation", "transformers.activations")
_CLOSE = 0.02  # the largest difference that counts as rounding


class Alike(nn.Module):
    """An activation function that is always computed in whole vectors, for inputs of any shape."""

    def __init__(self, function: nn.Module):
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs of the shape of the inputs."""
        if torch.is_grad_enabled():
            return self.function(inputs)
        flat = inputs.flatten()
        filled = pad(flat, (0, -len(flat) % _VECTOR))
        outputs = torch.cat([self.function(part) for part in filled.split(_SERIAL)])
        return outputs[: len(flat)].view(inputs.shape)


def compute_alike(module: nn.Module) -> None:
    """Replace activation functions whose bits depend on the place, in a module that `shared_copy` made."""
    dtype = next(module.parameters()).dtype
    for part in list(module.modules()):
        for name, child in list(part.named_children()):
            if (
                type(child).__module__ in _PACKAGES
                and not is_alike(child, dtype)
                and _is_elementwise(child, dtype)
            ):
                setattr(part, name, Alike(child))


@lru_cache(maxsize=1)
def functions_are_alike() -> bool:
    """Return True if the functions of attention and rotary positions give the same bits at any place."""
    functions = (torch.exp, torch.tanh, torch.cos, torch.sin)
    return all(is_alike(function, torch.float32) for function in functions)


@torch.no_grad()
def is_alike(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> bool:
    """Return True if a function gives the same bits for numbers in vectors and for numbers one by one.

    All numbers of a 16-bit dtype are tried, or as many random ones of a wider dtype.
    """
    inputs = _inputs(dtype)
    apart = inputs.new_zeros(len(inputs), 2)
    apart[:, 0] = inputs
    whole = function(inputs)
    ends = [function(inputs[start : start + 3].clone()) for start in range(0, 300, 3)]
    pairs = [
        (function(apart[:, 0]), whole),
        (torch.cat(ends), whole[:300]),
        (function(inputs[:-1]), whole[:-1]),
    ]
    return all(torch.equal(found.nan_to_num(), expected.nan_to_num()) for found, expected in pairs)


@torch.no_grad()
def _is_elementwise(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> bool:
    """Return True if each output depends on one input only."""
    inputs = torch.linspace(-4, 4, 7, dtype=dtype, device="cpu")
    whole, alone = function(inputs), torch.cat([function(one) for one in inputs.split(1)])
    return whole.shape == alone.shape and bool((whole - alone).abs().max() < _CLOSE)


def _inputs(dtype: torch.dtype) -> Tensor:
    if dtype.itemsize == 2:
        every = torch.arange(-(2**15), 2**15, dtype=torch.int16, device="cpu").view(dtype)
        return every[every.isfinite()]
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(2**16, dtype=torch.float32, device="cpu", generator=generator)
    return normal.mul_(4).to(dtype)
