"""Ratios of measured values, with their standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


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


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Sum divided by sum of independent pairs: tokens per step or per second over prompts, or a paired speed-up.

    The error is that of the linearised ratio (Cochran, Sampling Techniques, 1977, section 6.4).

    >>> ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    Estimate(value=2.0, error=0.0)
    """
    assert len(numerators) == len(denominators) > 0
    total, number = sum(denominators), len(numerators)
    value = sum(numerators) / total
    if number == 1:
        return Estimate(value)
    pairs = zip(numerators, denominators, strict=True)
    squares = sum((above - value * below) ** 2 for above, below in pairs)
    return Estimate(value, sqrt(squares * number / (number - 1)) / total)
