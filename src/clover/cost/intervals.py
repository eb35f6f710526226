"""Intervals by the bootstrap: what other prompts of the same kind would have given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEVEL = 0.9  # probability that a stated interval holds the true value
DRAWS = 4000


@dataclass(frozen=True)
class Interval:
    """A figure, and the bounds between which it lies with probability LEVEL."""

    value: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def interval(value: float, samples: Tensor) -> Interval:
    """The inner LEVEL of `samples` [draws], which may hold infinities; the bounds are samples."""
    ordered = samples.sort().values
    tail = round((1 - LEVEL) / 2 * (len(ordered) - 1))
    return Interval(value, float(ordered[tail]), float(ordered[-1 - tail]))


def resample(count: int, seed: int = 0, draws: int = DRAWS) -> Tensor:
    """Long [draws, count]: in each draw `count` of the numbers 0 … count - 1, drawn with replacement."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(count, (draws, count), generator=generator)


def resampled_means(values: Sequence[float], drawn: Tensor) -> Tensor:
    """Float64 [draws] the mean of `values` over each row of `drawn`."""
    return torch.tensor(values, dtype=torch.float64)[drawn].mean(1)


def student_t(freedom: int, seed: int = 0, draws: int = DRAWS) -> Tensor:
    """Float64 [draws] of Student's t distribution."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(draws, 1 + freedom, generator=generator, dtype=torch.float64)
    return normal[:, 0] / normal[:, 1:].square().mean(1).sqrt()
