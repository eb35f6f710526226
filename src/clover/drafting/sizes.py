"""What `AutoPolicy` knows about batches of about one size, and when it tries what does not lead."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2
from statistics import fmean

from clover.drafting.estimates import CostEstimate
from clover.drafting.policy import StepOutcome
from clover.drafting.tuning import PLAIN

# Steps between trials of the same candidate. Where costs are tuned, drafted steps tell how the text is for all trees.
_WAIT, _TUNED_WAIT = 24, 96
_LONGEST = 8  # times as long, after trials that were lost


def size_group(batch_size: int) -> int:
    """Batch sizes of one group are about alike: 1, 2, 3 to 5, 6 to 11, 12 to 22 and so on."""
    return round(log2(batch_size))


@dataclass
class Trial:
    """Steps of a candidate that is not the best, to learn what it is worth now.

    Attributes:
        left: steps that are still to come.
        rests: whether the next step is the leader's.
    """

    name: str
    left: int
    rests: bool = False
    steps: list[StepOutcome] = field(default_factory=list)

    @property
    def emitted(self) -> float:
        """Tokens per row."""
        return sum(fmean(step.emitted) for step in self.steps)


@dataclass
class Size:
    """One group of batch sizes. Where costs are tuned, the scales of all sizes are the same.

    Args:
        names: of the candidates that are considered.
        tuned: whether their costs are known beforehand.

    Attributes:
        plain_tried: whether plain steps have had a trial.
        steps: so far, of batches of this size.
        leader: what is held for the best.
    """

    costs: CostEstimate
    names: tuple[str, ...]
    tuned: bool = False
    leader: str = PLAIN
    plain_tried: bool = False
    steps: int = 0
    _due: dict[str, int] = field(default_factory=dict)  # at which step a candidate may be tried again
    _patience: dict[str, int] = field(default_factory=dict)  # waits between trials, for what has lost

    def lead(self, name: str) -> None:
        """Let this candidate lead."""
        if name == self.leader:
            return
        before, self.leader = self.leader, name
        self._patience[before] = 1
        self._due[before] = self.steps + self._wait(before)
        if name == PLAIN:
            self._due = {other: min(due, self.steps + self._wait(other)) for other, due in self._due.items()}

    def is_due(self, name: str) -> bool:
        """Whether a candidate may be tried again; what is tuned not at the start, except plain steps."""
        first = self._wait(name) if self.tuned and name != PLAIN else 0
        return self.steps >= self._due.get(name, first)

    def end_trial(self, name: str, won: bool) -> None:
        """Note a trial; who loses waits twice as long as before."""
        self.plain_tried = self.plain_tried or name == PLAIN
        self._patience[name] = 1 if won else min(2 * self._patience.get(name, 1), _LONGEST)
        self._due[name] = self.steps + self._wait(name)

    def _wait(self, name: str) -> int:
        return self._patience.get(name, 1) * (_TUNED_WAIT if self.tuned and self.leader != PLAIN else _WAIT)
