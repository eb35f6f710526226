"""Products with weights that are rounded to 8 bits, for a draft on a CPU.

A draft says only what is proposed; the target, whose weights are never rounded, says what is kept. So a draft's weights
may be a little off without a change to the text. With 8 bits a product reads a quarter of what float32 takes, and the
operator for it does little besides: a few rows take half the time of a packed weight, and a third where the target's
weights have just filled the caches (docs/log.md). It goes row by row, so with many rows it has no advantage.

Shapes: O outputs, I inputs, both of one layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_MIN_ELEMENTS = 2**16  # of a weight: below it the call itself takes longer than the product
FEW_ROWS = 32  # at most: with more the operator for packed weights is as fast
_MULTIPLE = 64  # inputs are a multiple of it: the operator reads 16 at once, also past the end
_DTYPES = (torch.float32, torch.bfloat16)
_in_use = False


class RoundedLinear:
    """`x Wᵀ + b` for a few rows x, in bfloat16, with W rounded to 8 bits and one scale per output.

    W is rounded when it is first used: some drafts have layers that no step runs.

    Args:
        weight: [O, I], one for which `can_round` holds.
        bias: [O].
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias, self.inputs = weight.detach(), bias, weight.shape[1]
        self._rounded: tuple[Tensor, Tensor] | None = None

    def takes(self, inputs: Tensor) -> bool:
        """Whether inputs [..., I] have few rows, and rounding is in use."""
        return _in_use and 0 < inputs.numel() <= FEW_ROWS * self.inputs

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs [..., I] to outputs [..., O] of their dtype."""
        if self._rounded is None:
            self._rounded = _to_8_bits(self.weight)
        rows = inputs.reshape(-1, self.inputs).to(torch.bfloat16).contiguous()
        outputs = torch._weight_int8pack_mm(rows, *self._rounded).to(inputs.dtype)
        outputs = outputs.view(*inputs.shape[:-1], -1)
        return outputs if self.bias is None else outputs + self.bias


@contextmanager
def rounding(wanted: bool) -> Iterator[None]:
    """Let every `RoundedLinear` run inside the block, or none."""
    global _in_use
    before, _in_use = _in_use, wanted
    try:
        yield
    finally:
        _in_use = before


def can_round(*weights: Tensor) -> bool:
    """Whether one product with these weights [O, I] side by side is worth a `RoundedLinear` and may be one here."""
    fast = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return fast and can_replace(*weights) and all(weight.shape[1] % _MULTIPLE == 0 for weight in weights)


def can_replace(*weights: Tensor) -> bool:
    """Whether these weights side by side are on a CPU, of a dtype and of a size that another product is worth it."""
    large = sum(weight.numel() for weight in weights) >= _MIN_ELEMENTS
    return large and all(weight.dtype in _DTYPES and weight.device.type == "cpu" for weight in weights)


def _to_8_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Int8 [O, I] and the scale of each output, bfloat16 [O], that give a weight [O, I] when multiplied."""
    exact = weight.to(torch.float32)
    least = torch.finfo(torch.float32).tiny  # for rows of zeros
    scales = (exact.abs().amax(1) / 127).clamp_min(least).to(torch.bfloat16)
    whole = (exact / scales[:, None]).round().clamp(-127, 127)
    return whole.to(torch.int8).contiguous(), scales
