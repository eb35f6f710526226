"""Ratios of measured values, with their standard errors over prompts and over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot

import numpy as np
from numpy.typing import NDArray

Pairs = Sequence[tuple[float, float]]  # (part, whole) of each prompt


@dataclass(frozen=True)
class Estimate:
    """A value and its standard error; the error is None where one sample cannot tell it."""

    value: float
    error: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """Value and error times a factor, such as 100 for percent."""
        return Estimate(factor * self.value, None if self.error is None else factor * self.error)

    def text(self, digits: int = 2) -> str:
        """The value, and the error if there is one.

        >>> Estimate(2.514, 0.083).text(), Estimate(3.0).text(1)
        ('2.51 ± 0.08', '3.0')
        """
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        return f"{self.value:.{digits}f}{error}"


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
        if len({len(pairs) for pairs in seeds}) > 1:  # not all seeds had the same prompts
            seeds = [[pair for pairs in seeds for pair in pairs]]
        grid = np.array(seeds, dtype=np.float64)  # [seeds, prompts, 2]
        whole = grid[..., 1].sum() or 1.0
        value = float(grid[..., 0].sum() / whole)
        deviations = (grid[..., 0] - value * grid[..., 1]) / whole
        return cls(value, deviations.sum(0), deviations.sum(1))

    def __sub__(self, other: Ratio) -> Ratio:
        """The difference, prompt by prompt where both were measured on the same ones."""
        prompts, seeds = _joined(self.prompts, -other.prompts), _joined(self.seeds, -other.seeds)
        return Ratio(self.value - other.value, prompts, seeds)

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


def ratio(pairs: Pairs) -> Estimate:
    """Sum divided by sum of independent pairs: tokens per step or per second over prompts, or a paired speed-up.

    >>> ratio([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)])
    Estimate(value=2.0, error=0.0)
    """
    return Ratio.of([pairs]).estimate


def _joined(own: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    return own + other if len(own) == len(other) else np.concatenate((own, other))


def _error(deviations: NDArray[np.float64]) -> float | None:
    number = len(deviations)
    return None if number < 2 else float(np.sqrt((deviations**2).sum() * number / (number - 1)))
