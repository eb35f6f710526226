"""Muon (Jordan and others, 2024; https://kellerjordan.github.io/posts/muon/) that is fast on every processor.

PyTorch's own Muon computes in bfloat16. A processor without instructions for bfloat16 multiplies such matrices several
times more slowly than those of float32. There the optimizer took most of a training's time.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton-Schulz iteration, from the source above
_ITERATIONS, _LEAST = 5, 1e-7
_RMS = 0.2  # of AdamW's updates, which these are scaled to (Moonshot AI, 2502.16982, §2.2)


class Muon(Optimizer):
    """An optimizer that makes the momentum of each matrix nearly orthogonal before it is added.

    Args:
        params: matrices [O, I].
        lr: learning rate, of the same size as AdamW's.
        momentum: share of the momentum that is kept; with Nesterov's look-ahead.
        weight_decay: decoupled, as in AdamW.
        dtype: see `orthogonal`.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all matrices that have a gradient."""
        assert closure is None, "the loss is not evaluated again"
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                kept = state["momentum_buffer"]
                kept.lerp_(weight.grad, 1 - momentum)
                update = orthogonal(weight.grad.lerp(kept, momentum), self._dtype)
                weight.mul_(1 - lr * group["weight_decay"])
                weight.add_(update, alpha=-lr * _RMS * max(weight.shape) ** 0.5)


def orthogonal(matrix: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a matrix [O, I] with the same singular vectors and singular values near 1 (five Newton-Schulz steps).

    `dtype` is that of the products; None for the one that the processor multiplies faster in.
    """
    wide = matrix.to(dtype or _product_dtype(matrix))
    tall = len(wide) > wide.shape[1]
    wide = wide.T if tall else wide
    wide = wide / wide.norm().clamp(min=_LEAST)
    fewer = 2 * wide.shape[1] > 3 * len(wide) and wide.dtype != torch.bfloat16
    wide = _iterate_on_gram(wide) if fewer else _iterate(wide)
    return (wide.T if tall else wide).to(matrix.dtype)


def _iterate(wide: Tensor) -> Tensor:
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide


def _iterate_on_gram(wide: Tensor) -> Tensor:
    """Return the same by products of the Gram matrix X Xᵀ, which is smaller than X [O, I] if O < I.

    Each iteration multiplies X from the left by a polynomial in the Gram matrix; all of them commute. The Gram matrix
    squares the condition number, so rounding errors are larger than in X: below 1e-3 in float32, too large in bfloat16.
    """
    a, b, c = _COEFFICIENTS
    gram, factors = wide @ wide.T, None
    for left in reversed(range(_ITERATIONS)):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal().add_(a)
        factors = factor if factors is None else factor @ factors
        if left:
            gram = factor @ (factor @ gram)
    assert factors is not None
    return factors @ wide


def _product_dtype(matrix: Tensor) -> torch.dtype:
    """Return the dtype by the processor's abilities, not by timing: a resumed training must compute as it began."""
    if matrix.device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported():
        return torch.float32
    return torch.bfloat16
