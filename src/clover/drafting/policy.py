"""What drafts at each step: the seam between the engine and whoever decides while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clover.drafting.base import Drafter
from clover.drafts.ngrams import RepeatingText


@dataclass(frozen=True)
class Running:
    """The sequences that the next step is for.

    Attributes:
        batch_size: how many there are.
        context: tokens of the longest one.
        room: positions that the longest one may still take.
        texts: gives each sequence's text, if anyone wants to know.
    """

    batch_size: int
    context: int
    room: int = field(default=sys.maxsize, compare=False)
    texts: Callable[[], Sequence[RepeatingText]] = field(default=tuple, compare=False)


@dataclass(frozen=True)
class StepOutcome:
    """How one decoding step went.

    Attributes:
        batch_size: sequences that ran.
        context: tokens of the longest one, when the step was chosen.
        drafter: what grew the trees.
        nodes: of each tree, root included; 1 for a plain step.
        emitted: tokens of each sequence in this step, bonus token included.
        seconds: of the whole step.
        draft_seconds: of the drafting in it.
        caught_up: positions per sequence that the draft had to take in beyond the last step's, after steps without it.
    """

    batch_size: int
    context: int
    drafter: Drafter
    nodes: int
    emitted: tuple[int, ...]
    seconds: float
    draft_seconds: float
    caught_up: int

    @property
    def accepted(self) -> list[int]:
        """Draft tokens of each sequence that were accepted."""
        return [count - 1 for count in self.emitted]


class Policy(Protocol):
    """Decides before each step what drafts, and learns from how it went. The text never depends on it.

    Attributes:
        max_nodes: no drafter that it may choose has trees of more nodes, root included.
        max_depth: no drafter that it may choose has deeper trees; 0 if it never drafts.
    """

    max_nodes: int
    max_depth: int

    def choose(self, running: Running) -> Drafter:
        """Choose what drafts in the next step."""
        ...

    def record(self, outcome: StepOutcome) -> None:
        """Learn how the step went that was chosen last."""
        ...


class FixedPolicy(Policy):
    """Always the same drafter."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.max_nodes, self.max_depth = drafter.max_nodes, drafter.max_depth

    def choose(self, running: Running) -> Drafter:
        return self.drafter

    def record(self, outcome: StepOutcome) -> None:
        """There is nothing to learn."""
