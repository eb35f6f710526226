"""Running estimates of the gain and the cost of drafting: tokens per step by depth, and seconds of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import exp, log
from statistics import median

_MEMORY = 32.0  # the steps over which acceptance is averaged
_FORGOTTEN = 1e-9  # The number of observations stays above this, to avoid 0 / 0.
# The lowest learning rate of a candidate's seconds, and the learning rate of the machine's speed.
_SLOWEST, _DRIFT = 0.01, 0.1
_OUTLIER = 0.4  # the largest error of a logarithm; larger ones are clipped


class RunningAcceptance:
    """Tokens per step at each depth, from a running mean of the acceptance rate there.

    The rate at a depth counts the sequences that reached it. A depth with few observations takes the rate of the depth
    before. The initial `rate` counts as `weight` observations.
    """

    def __init__(self, depth: int, rate: float = 0.6, weight: float = 1.0):
        self._right, self._tried = [0.0] * depth, [0.0] * depth
        self._right[0], self._tried[0] = rate * weight, weight

    def observe(self, accepted: Sequence[int], depth: int) -> None:
        """Learn from a step: the accepted draft tokens of each sequence, for chains or trees of this depth."""
        self.discount()
        for count in accepted:
            for at in range(min(count + 1, depth)):
                self._tried[at] += 1
                self._right[at] += at < count

    def discount(self) -> None:
        """Reduce the weight of past observations, even in steps without new ones; the rates stay."""
        kept = 1 - 1 / _MEMORY if self._tried[0] > _FORGOTTEN else 1.0
        self._right = [kept * value for value in self._right]
        self._tried = [kept * value for value in self._tried]

    def tokens(self, depth: int) -> float:
        """Return the tokens expected per sequence and step, the bonus token included."""
        rate, reached, total = self._right[0] / self._tried[0], 1.0, 1.0
        for right, tried in zip(self._right[:depth], self._tried, strict=False):
            rate = (right + rate) / (tried + 1)
            reached *= rate
            total += reached
        return total


@dataclass
class StepSeconds:
    """Seconds of a step of each measured candidate, in batches of similar size; only ratios matter.

    The machine's speed drifts, so each measurement is divided by the recent slowness of the machine. `runs` counts the
    steps of a candidate; its first step is not measured, because it may pack weights or compile.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    machine: float | None = None  # the current slowness: measured seconds per second of `seconds`

    def observe(self, name: str, seconds: float) -> None:
        """Learn from the seconds of a step."""
        runs = self.runs[name] = self.runs.get(name, 0) + 1
        if name not in self.seconds:
            if runs > 1:
                self.machine = self.machine or 1.0
                self.seconds[name] = seconds / self.machine
            return
        if self.machine is None:
            self.machine = seconds / self.seconds[name]
        error = log(seconds / self.machine / self.seconds[name])
        error = max(-_OUTLIER, min(error, _OUTLIER))  # Other processes make single steps slow.
        self.seconds[name] *= exp(error * max(1 / runs, _SLOWEST))
        self.machine *= exp(error * _DRIFT)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of the Theil-Sen line, a median over all pairs, which is robust to outliers.

    The slope is never negative. A line with a negative intercept, from few or noisy points, goes through the origin.
    """
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    slope = max(median(slopes), 0.0) if slopes else 0.0
    start = median(y - slope * x for x, y in points)
    return (slope, start) if start >= 0 else (median(y / x for x, y in points if x), 0.0)


def even_rate(tau: float, depth: int) -> float:
    """Return the acceptance rate that, if it is the same at every depth, gives `tau` tokens per step."""
    low, high = 0.0, 1.0
    for _ in range(30):
        rate = (low + high) / 2
        low, high = (low, rate) if sum(rate**d for d in range(depth + 1)) > tau else (rate, high)
    return low
