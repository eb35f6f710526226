"""What this device can do at most: reading memory and multiplying matrices, measured, not from a datasheet.

A decoding step cannot take less time than reading its weights once, nor than its multiplications. Both ceilings are
measured as the step uses them: a matrix as large as the weights times one vector and its sum, the faster of the two (so
that weights which fit into a cache are held against the cache), and a square matrix product in the model's dtype.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.interleaved import wait_for
from clover.target import TargetModel

_REPEATS = 7
_COLUMNS = 4096
_LARGEST_READ = 2**32  # bytes; beyond it every cache is left behind
_SMALLEST_READ = 2**20
_GEMM_SIZES = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True)
class Ceilings:
    """The device's limits.

    Args:
        bytes_per_second: read.
        read_bytes: how many were read at once to measure it.
        flops_per_second: of a matrix product in the model's dtype.
    """

    bytes_per_second: float
    read_bytes: int
    flops_per_second: float

    def read_seconds(self, number: float) -> float:
        """The least time for reading so many bytes."""
        return number / self.bytes_per_second

    def product_seconds(self, flops: float) -> float:
        """The least time for so many floating-point operations."""
        return flops / self.flops_per_second


@dataclass(frozen=True)
class StepWork:
    """What a decoding step of the target cannot avoid, whatever the batch.

    Args:
        weight_bytes: that a step reads once.
        flops_per_token: of the matrix products with the weights; attention comes on top.
    """

    weight_bytes: int
    flops_per_token: int


def step_work(target: TargetModel) -> StepWork:
    """Count the weights that a step reads: all but the embedding table, of which it reads a row per token.

    A table that is also the lm_head is read as that.
    """
    embedding = target.embedding_weight
    tied = embedding.data_ptr() == target.lm_head_weight.data_ptr()
    weights = {weight.data_ptr(): weight for weight in target.model.parameters()}
    read = [w for w in weights.values() if tied or w.data_ptr() != embedding.data_ptr()]
    return StepWork(
        weight_bytes=sum(weight.nbytes for weight in read),
        flops_per_token=2 * sum(weight.numel() for weight in read if weight.ndim == 2),
    )


def measure_ceilings(device: torch.device, dtype: torch.dtype, read_bytes: int) -> Ceilings:
    """Measure reading `read_bytes` (4 GiB at most) and a matrix product."""
    wanted = max(_SMALLEST_READ, min(read_bytes, _LARGEST_READ))
    rows = -(-wanted // (_COLUMNS * dtype.itemsize))
    matrix = torch.ones(rows, _COLUMNS, dtype=dtype, device=device)
    vector = torch.ones(_COLUMNS, dtype=dtype, device=device)
    with torch.inference_mode():
        reading = min(fastest(lambda: matrix @ vector, device), fastest(matrix.sum, device))
    size = _GEMM_SIZES.get(device.type, 1024)
    return Ceilings(matrix.nbytes / reading, matrix.nbytes, _product_speed(size, dtype, device))


def fastest(call: Callable[[], Tensor], device: torch.device, repeats: int = _REPEATS) -> float:
    """Seconds of the fastest of some calls, after one that does not count: a ceiling has no bad luck."""
    call()
    wait_for(device)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        wait_for(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _product_speed(size: int, dtype: torch.dtype, device: torch.device) -> float:
    left, right = torch.ones(2, size, size, dtype=dtype, device=device)
    with torch.inference_mode():
        return 2 * size**3 / fastest(lambda: left @ right, device)
