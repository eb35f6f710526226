"""The end of a batch whose finished rows are not replaced: they finish one by one, and the last one runs alone.

Plain steps bring all rows on alike. Drafted ones do not: rows differ in how easy their text is and in luck, so the
slowest row needs more steps than the mean one, in a batch that gets small.
"""

from collections.abc import Sequence
from functools import cache
from math import hypot, sqrt
from statistics import NormalDist, fmean

# How much of what drafting adds to a row varies from row to row, relative, and from step to step, squared. Measured
# (docs/auto.md).
_ROWS, _STEPS = 0.2, 1.2


class Tail:
    """What is still to come of a batch.

    Args:
        left: tokens that each row may still emit.
    """

    def __init__(self, left: Sequence[int]):
        self._mean = fmean(left)
        self._longest = max(left) / self._mean - 1
        self._slowest = _highest(len(left))

    def lag(self, tokens: float) -> float:
        """How much more the slowest row has before it than the mean one, over what the mean one has; 0 for one row.

        Args:
            tokens: that a step emits per row on average, the bonus token included; plain steps emit one.
        """
        spread = self._slowest * (1 - 1 / tokens) * sqrt(_ROWS**2 + _STEPS * tokens / self._mean)
        return hypot(self._longest, spread)

    def surplus(self, tokens: float) -> float:
        """How many more steps the mean row needs than its tokens over those of a mean step; 0 for plain steps.

        A row whose text is hard takes more steps than one as easy saves, and the last step of each row goes beyond its
        end.

        Args:
            tokens: as for `lag`.
        """
        return (1 - 1 / tokens) * _ROWS**2 + (tokens - 1) / (2 * self._mean)


@cache
def _highest(count: int) -> float:
    """The largest of so many draws from a standard normal distribution, about (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
