"""How hard the running texts are for the draft, row by row.

Rows differ. The last rows of a batch are those whose text is hard, and say little about the ones that follow. So each
row has an estimate of its own, and a new one starts from what rows of its temperature were like in all their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from clover.drafting.hazards import LEAST_HAZARD

_WINDOW, _SHORTEST_WINDOW = (
    16,
    4,
)  # steps of a row over which its difficulty is averaged: alone, and in a large batch
_LIKE_OTHERS = 8  # steps of its own that weigh as much as what other rows were like
_MEMORY = 400.0  # rows times steps over which rows of one temperature are averaged
_CLASSES, _HIGHEST = 2, 2.0  # texts are told apart by their temperature, in classes of a half, up to 2


def temperature_class(temperature: float) -> int:
    """Which texts are about alike: those of one half of a unit of temperature."""
    return round(_CLASSES * min(temperature, _HIGHEST))


@dataclass
class Endings:
    """Paths that ended before their tree did, over the hazard that they had been exposed to; both sums or means."""

    ended: float
    exposed: float

    @property
    def ratio(self) -> float:
        """Above 0, also after so many paths without an end that their weighted mean has become 0."""
        return max(self.ended / self.exposed, LEAST_HAZARD)


@dataclass
class _Text:
    """Means over steps of late, and from how many steps they are."""

    hazard: Endings
    seen: float


class _Class:
    """Texts of about one temperature.

    Args:
        ended, exposed: presumed of a step of one row; they count as one that was seen.
    """

    def __init__(self, ended: float, exposed: float):
        self._all, self._steps = Endings(ended, exposed), 1.0
        self.rows: dict[int, _Text] = {}

    def enter(self, rows: Sequence[int]) -> None:
        """Go on with these rows; those that were not there before are like all others."""
        self.rows = {row: self.rows.get(row) or self._new() for row in rows}

    @property
    def ratio(self) -> float:
        """Of the rows that run, as if they were one."""
        hazards = [text.hazard for text in self.rows.values()]
        return Endings(sum([one.ended for one in hazards]), sum([one.exposed for one in hazards])).ratio

    def _new(self) -> _Text:
        mean = Endings(self._all.ended / self._steps, self._all.exposed / self._steps)
        return _Text(mean, min(self._steps, _LIKE_OTHERS))

    def observe(self, ended: Sequence[float], exposed: Sequence[float]) -> None:
        """Learn from a step of all rows."""
        kept = (1 - 1 / _MEMORY) ** len(self.rows)
        self._all = Endings(kept * self._all.ended + sum(ended), kept * self._all.exposed + sum(exposed))
        self._steps = kept * self._steps + len(self.rows)
        window = max(_WINDOW / sqrt(len(self.rows)), _SHORTEST_WINDOW)
        for text, own_ended, own_exposed in zip(self.rows.values(), ended, exposed, strict=True):
            share = max(1 / window, 1 / (text.seen + 1))
            text.hazard.ended += share * (own_ended - text.hazard.ended)
            text.hazard.exposed += share * (own_exposed - text.hazard.exposed)
            text.seen += 1


class DifficultyEstimate:
    """What multiplies the hazards of all trees in the texts that run at present.

    It is the number of paths that ended over the hazard that they were exposed to. Each row has exponentially weighted
    means of both, over about 16 steps, over fewer where there are several rows. After plain steps, of which nothing is
    learnt, the next steps count as much as the first ones did. Texts of different temperatures have difficulties of
    their own.

    Args:
        exposed: hazard that a row is usually exposed to in a step.
        presumed: difficulty of texts of a temperature before any was seen.

    Attributes:
        ratio: of the rows that run.
    """

    def __init__(self, exposed: float, presumed: Callable[[float], float]):
        self._exposed, self._presumed = exposed, presumed
        self._classes: dict[int, _Class] = {}
        self.enter(0.0, (0,))

    def enter(self, temperature: float, rows: Sequence[int]) -> None:
        """Go on with these rows, of this temperature in the mean; each is known by a number that no other row has."""
        at = temperature_class(temperature)
        if at not in self._classes:
            self._classes[at] = _Class(self._exposed * self._presumed(temperature), self._exposed)
        self._class = self._classes[at]
        if list(self._class.rows) != list(rows):
            self._class.enter(rows)
        self.ratio = self._class.ratio

    def observe(self, ended: Sequence[float], exposed: Sequence[float]) -> None:
        """Learn from a step.

        Args:
            ended: 1 for each row whose path ended before its tree did, else 0; in the order of `enter`.
            exposed: hazard that each row was exposed to.
        """
        self._class.observe(ended, exposed)
        self.ratio = self._class.ratio

    def fade(self) -> None:
        """What was seen is old now: more than another step or two it shall not outweigh."""
        for text in self._class.rows.values():
            text.seen = min(text.seen, 1.0)
