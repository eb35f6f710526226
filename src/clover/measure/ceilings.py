"""Measure the ceilings of a device: the speed of reading memory, and of multiplying matrices.

The matrix for the speed of reading is as large as the weights. So weights that fit into a cache are compared with the
speed of that cache.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clover.measure.timing import wait_for
from clover.target import TargetModel

_REPEATS = 7
_COLUMNS = 4096
_LARGEST_READ = 2**30  # bytes; larger than every cache
_SMALLEST_READ = 2**20


@dataclass(frozen=True)
class Limits:
    """The device's ceilings, and the least that a decoding step of the target needs.

    A step reads `weight_bytes` for any batch size; in a mixture of experts these are the experts of one token.
    `flops_per_token` counts the products with these weights, without attention.
    """

    weight_bytes: int
    flops_per_token: int
    bytes_per_second: float
    flops_per_second: float

    @property
    def read_seconds(self) -> float:
        """Return the minimum time to read the weights once."""
        return self.weight_bytes / self.bytes_per_second

    @property
    def fact(self) -> tuple[str, str]:
        """Return the line of a report's card."""
        speeds = f"{self.bytes_per_second / 1e9:.1f} GB/s, {self.flops_per_second / 1e9:,.0f} Gflop/s"
        step = f"{self.weight_bytes / 1e6:,.0f} MB of weights, {1e3 * self.read_seconds:.2f} ms"
        return "ceilings", f"{speeds}; a step reads {step}"

    def product_seconds(self, tokens: int) -> float:
        """Return the minimum time for the matrix products of so many tokens."""
        return tokens * self.flops_per_token / self.flops_per_second


def measure_limits(target: TargetModel) -> Limits:
    """Count the bytes and products of a step of the target, and measure the device's ceilings for them.

    A step reads all weights except the embedding table, unless that table is also the lm_head.
    """
    embedding = target.embedding_weight
    tied = embedding.data_ptr() == target.lm_head_weight.data_ptr()
    weights = {weight.data_ptr(): weight for weight in target.model.parameters()}
    read = [w for w in weights.values() if tied or w.data_ptr() != embedding.data_ptr()]
    needed = [weight.numel() * _share(weight, target.config) for weight in read]
    size = round(sum(n * weight.itemsize for n, weight in zip(needed, read, strict=True)))
    if target.weights is not None and target.copied is not None:
        size -= target.copied.replaced * (target.lm_head_weight.itemsize - 1)
    return Limits(
        weight_bytes=size,
        flops_per_token=round(2 * sum(n for n, weight in zip(needed, read, strict=True) if weight.ndim > 1)),
        bytes_per_second=_read_speed(size, target.dtype, target.device),
        flops_per_second=_product_speed(target.dtype, target.device),
    )


def _share(weight: Tensor, config: Any) -> float:
    """Return the share of a weight that one token needs: for a weight of all experts [E, …], the token's experts."""
    chosen = getattr(config, "num_experts_per_tok", None) if weight.ndim == 3 else None
    return min(chosen / len(weight), 1.0) if chosen else 1.0


def fastest(call: Callable[[], Tensor], device: torch.device) -> float:
    """Return the seconds of the fastest of several calls, after a first one that does not count."""
    times = []
    for _ in range(1 + _REPEATS):
        started = time.perf_counter()
        call()
        wait_for(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])


@torch.inference_mode()
def _read_speed(size: int, dtype: torch.dtype, device: torch.device) -> float:
    rows = -(-max(_SMALLEST_READ, min(size, _LARGEST_READ)) // (_COLUMNS * dtype.itemsize))
    matrix = torch.ones(rows, _COLUMNS, dtype=dtype, device=device)
    vector = torch.ones(_COLUMNS, dtype=dtype, device=device)
    return matrix.nbytes / min(fastest(lambda: matrix @ vector, device), fastest(matrix.sum, device))


@torch.inference_mode()
def _product_speed(dtype: torch.dtype, device: torch.device) -> float:
    size = 8192 if device.type == "cuda" else 1024
    left, right = torch.ones(2, size, size, dtype=dtype, device=device)
    return 2 * size**3 / fastest(lambda: left @ right, device)
