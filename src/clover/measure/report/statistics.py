"""Estimate ratios of measured values, with their standard errors over prompts, texts or batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

Pair = tuple[float, float]  # part, whole


@dataclass(frozen=True)
class Estimate:
    """A value and its standard error, which is None for a single sample."""

    value: float
    error: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """Return value and error times a factor, such as 100 for percent."""
        return Estimate(factor * self.value, None if self.error is None else factor * self.error)

    def text(self, digits: int = 2) -> str:
        """Return the value as text, with the error if there is one.

        >>> Estimate(2.514, 0.083).text(), Estimate(3.0).text(1)
        ('2.51 ± 0.08', '3.0')
        """
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        return f"{self.value:.{digits}f}{error}"


def ratio(pairs: Sequence[Pair]) -> Estimate:
    """Return the sum of the parts divided by the sum of the wholes; 0 of nothing is 0.

    The pairs are independent: tokens and steps of each prompt, or plain and drafted seconds of each batch. The error is
    that of the linearized ratio (Cochran, Sampling Techniques, 1977, section 6.4).

    >>> ratio([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)]), ratio([(2.0, 1.0), (4.0, 1.0)])
    (Estimate(value=2.0, error=0.0), Estimate(value=3.0, error=1.0))
    """
    value, deviations = linearized(pairs)
    return Estimate(value, error_of(deviations))


def difference(first: Sequence[Pair], second: Sequence[Pair]) -> Estimate:
    """Return the first ratio minus the second; both have the same prompts in the same order.

    >>> difference([(3.0, 1.0), (6.0, 1.0)], [(2.0, 1.0), (4.0, 1.0)])
    Estimate(value=1.5, error=0.5)
    """
    (one, ours), (other, theirs) = linearized(first), linearized(second)
    return Estimate(one - other, error_of([a - b for a, b in zip(ours, theirs, strict=True)]))


def linearized(pairs: Sequence[Pair]) -> tuple[float, list[float]]:
    """Return the ratio, and the deviation of each pair from it in the linearized ratio."""
    total = sum(whole for _, whole in pairs) or 1.0
    value = float(sum(part for part, _ in pairs) / total)
    return value, [(part - value * whole) / total for part, whole in pairs]


def error_of(deviations: Sequence[float]) -> float | None:
    """Return the standard error from the deviations of the pairs; None for a single pair."""
    number = len(deviations)
    return sqrt(number / (number - 1) * sum(one**2 for one in deviations)) if number > 1 else None
