"""Ratios over prompts and seeds, and differences of two of them, with standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log

import numpy as np
from numpy.typing import NDArray

from clover.report.statistics import Estimate

Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Ratio:
    """Sum divided by sum of (part, whole), and how far each prompt and each seed pulls it away.

    Args:
        value: the ratio, or the difference of two; 0 of nothing is 0.
        prompts, seeds: the linearised deviations; they sum to 0 (Cochran, Sampling Techniques, 1977, section 6.4).
    """

    value: float
    prompts: NDArray[np.float64]
    seeds: NDArray[np.float64]

    @classmethod
    def of(cls, seeds: Sequence[Pairs]) -> Ratio:
        """The ratio of pairs by seed and prompt.

        >>> Ratio.of([[(2.0, 1.0), (4.0, 1.0)], [(4.0, 1.0), (6.0, 1.0)]]).estimate.text()
        '4.00 ± 1.41'
        """
        if len({len(pairs) for pairs in seeds}) > 1:  # of an older suite with other prompts
            seeds = [[pair for pairs in seeds for pair in pairs]]
        grid = np.array(seeds, dtype=np.float64)  # [seeds, prompts, 2]
        whole = grid[..., 1].sum() or 1.0
        value = float(grid[..., 0].sum() / whole)
        deviations = (grid[..., 0] - value * grid[..., 1]) / whole
        return cls(value, deviations.sum(0), deviations.sum(1))

    def __sub__(self, other: Ratio) -> Ratio:
        """The difference, prompt by prompt where both were measured on the same ones."""
        return Ratio(
            self.value - other.value,
            _joined(self.prompts, -other.prompts),
            _joined(self.seeds, -other.seeds),
        )

    @property
    def estimate(self) -> Estimate:
        """The value; its error is over prompts and, where there are several, over seeds."""
        errors = [e for e in (_error(self.prompts), _error(self.seeds)) if e is not None]
        return Estimate(self.value, hypot(*errors) if errors else None)

    @property
    def geometric(self) -> Estimate:
        """A geometric mean, where the pairs are (logarithm, 1)."""
        found = self.estimate
        return Estimate(exp(found.value), None if found.error is None else exp(found.value) * found.error)


def logarithms(values: Sequence[float], others: Sequence[float]) -> Pairs:
    """The pairs of the geometric mean of values divided by others."""
    return [(log(value / other), 1.0) for value, other in zip(values, others, strict=True)]


def _joined(own: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    return own + other if len(own) == len(other) else np.concatenate((own, other))


def _error(deviations: NDArray[np.float64]) -> float | None:
    number = len(deviations)
    return None if number < 2 else float(np.sqrt((deviations**2).sum() * number / (number - 1)))
