"""Running estimates of what a candidate costs and of how much of it is accepted.

Both are a product of two factors. The machine's speed and the text's difficulty change quickly, are the same for all
candidates, and are measured by whatever runs; how candidates compare changes slowly, and is measured by trials. So a
candidate that has not run for long is still judged by the present text and the present load of the machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import median_low

_KEPT = 9  # steps that a median is taken over: four slow ones in a row do not move it
_WINDOW = 16  # steps of one row over which a text's quality is averaged
_SHORTEST_WINDOW = 4
_LONGEST_MEMORY = 400.0  # rows times steps that a candidate's gain is averaged over


@dataclass
class _Gain:
    """Accepted tokens over the text's quality at the time; `weight` rows times steps speak for it."""

    value: float
    weight: float

    def update(self, accepted: float, quality: float, weight: float) -> None:
        total = self.weight * self.value + weight * accepted
        self.value = total / (self.weight + weight * quality)
        self.weight = min(self.weight + weight, _LONGEST_MEMORY)


class AcceptanceEstimate:
    """Tokens per row and step of each candidate: 1 + quality of the text x gain of the candidate.

    The quality is an exponentially weighted mean, over about 16 steps of one row, over fewer of several. After plain
    steps, of which it learns nothing, the next observations count as much as the first ones did.

    Args:
        gains: per candidate, tokens accepted per row and step of a text of quality 1.
        weight: rows times steps that speak for these gains.
    """

    def __init__(self, gains: Mapping[str, float], weight: float):
        self._gains = {name: _Gain(gain, weight) for name, gain in gains.items()}
        self._quality, self._seen = 1.0, 1

    def tokens(self, name: str) -> float:
        """Expected tokens per row and step, the bonus token included; 1 for a candidate without a gain."""
        gain = self._gains.get(name)
        return 1.0 if gain is None else 1.0 + self._quality * gain.value

    def observe(self, name: str, accepted: float, rows: int) -> None:
        """Learn the text's quality from a step.

        Args:
            accepted: draft tokens per row, the mean.
        """
        window = max(_WINDOW / sqrt(rows), _SHORTEST_WINDOW)
        share = max(1 / window, 1 / (self._seen + 1))
        self._quality += share * (accepted / self._gains[name].value - self._quality)
        self._seen += 1

    def compare(self, name: str, accepted: float, rows: int) -> None:
        """Learn a candidate's gain from a step, by the quality that another one's steps have given."""
        if self._quality > 0:
            self._gains[name].update(accepted, self._quality, rows)

    def fade(self) -> None:
        """What was seen is old now: more than another observation or two it shall not outweigh."""
        self._seen = min(self._seen, 1)


class CostEstimate:
    """Seconds per step of each candidate, of batches of about one size.

    Medians, since other processes make single steps slow, and never any fast.

    Args:
        seconds: what is known already, on a machine as fast as it was then.
        weight: steps that speak for it, at most 9.
    """

    def __init__(self, seconds: Mapping[str, float], weight: int):
        self._relative = {name: deque([value] * weight, maxlen=_KEPT) for name, value in seconds.items()}
        self._pace: deque[float] = deque(maxlen=_KEPT)

    @property
    def relative(self) -> dict[str, float]:
        """Seconds per step of all known candidates, on one unknown scale: only ratios count."""
        return {name: median_low(values) for name, values in self._relative.items()}

    @property
    def paced(self) -> bool:
        """Whether enough steps of late say how fast the machine is at present."""
        return len(self._pace) > _KEPT // 2

    def seconds(self, name: str) -> float:
        """Seconds per step of a known candidate at present; `paced` says whether that is known."""
        return median_low(self._relative[name]) * median_low(self._pace)

    def observe(self, name: str, seconds: float) -> None:
        """Learn the machine's speed from a step of the candidate that runs all the time."""
        if name not in self._relative:
            self._relative[name] = deque([seconds], maxlen=_KEPT)
        self._pace.append(seconds / median_low(self._relative[name]))

    def compare(self, name: str, seconds: Iterable[float]) -> None:
        """Learn from a trial's steps what a candidate costs, by the speed that another one's steps have given."""
        pace = median_low(self._pace)
        self._relative.setdefault(name, deque(maxlen=_KEPT)).extend(value / pace for value in seconds)

    def interrupt(self) -> None:
        """The speed of late is not that of the steps to come."""
        self._pace.clear()
