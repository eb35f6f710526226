"""What drafts at each step: the seam between the engine and whoever decides while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clover.drafting.base import Drafter
from clover.drafting.repetition import Copier, Repetition


@dataclass(frozen=True)
class Running:
    """The rows that the next step is for.

    Attributes:
        batch_size: how many there are.
        context: tokens of the longest row.
        temperature: the mean of the rows, 0 for greedy ones.
        left: tokens that each row may still emit, if no other request will take the place of one that has finished;
            empty if others may.
        behind: positions that the draft has to take in beyond the last step's if it is asked, in the row that has most.
        room: positions that the longest row may still take.
        rows: a number of each row, which no other row of the process has; empty where nobody gave any.
        repetitions: gives each row's text and where its end stood before, if anyone wants to know.
    """

    batch_size: int
    context: int
    temperature: float = 0.0
    left: tuple[int, ...] = ()
    behind: int = 0
    room: int = field(default=sys.maxsize, compare=False)
    rows: tuple[int, ...] = field(default=(), compare=False)
    repetitions: Callable[[], Sequence[Repetition]] = field(default=tuple, compare=False)


@dataclass(frozen=True)
class StepOutcome:
    """How one decoding step went.

    Attributes:
        batch_size: rows that ran.
        context: tokens of the longest row, when the step was chosen.
        drafter: what grew the trees, or copied them from the texts; None for a plain step.
        nodes: of each row's tree, root included; 1 for a plain step.
        emitted: tokens of each row in this step, bonus token included.
        seconds: of the whole step.
        draft_seconds: of the drafting in it.
        caught_up: positions per row that the draft had to take in beyond the last step's (after steps without it).
    """

    batch_size: int
    context: int
    drafter: Drafter | Copier | None
    nodes: int
    emitted: tuple[int, ...]
    seconds: float
    draft_seconds: float
    caught_up: int

    @property
    def accepted(self) -> list[int]:
        """Draft tokens of each row that were accepted."""
        return [count - 1 for count in self.emitted]


@dataclass(frozen=True)
class PrefillOutcome:
    """How a chunk of prompts went that the draft has taken in.

    Attributes:
        positions: of all rows together, padding included.
        draft_seconds: what the draft took for them.
    """

    positions: int
    draft_seconds: float


class Policy(Protocol):
    """Decides before each step what drafts, and learns from how it went. The text never depends on it.

    Attributes:
        max_nodes: no drafter that it may choose has trees of more nodes, root included; 1 if it never drafts.
        max_depth: no drafter that it may choose has deeper trees; 0 if it never drafts.
    """

    max_nodes: int
    max_depth: int

    def choose(self, running: Running) -> Drafter | Copier | None:
        """Choose what drafts in the next step, or that copies are made; None for a plain step."""
        ...

    def record(self, outcome: StepOutcome) -> None:
        """Learn how the step went that was chosen last."""
        ...

    def expects_draft(self, coming: Running) -> bool:
        """Whether the draft will soon be asked in a batch that is about to run.

        If not, its prompts are left to it until it is.
        """
        return True

    def record_prefill(self, outcome: PrefillOutcome) -> None:
        """Learn how a chunk of prompts went."""
        return


class FixedPolicy(Policy):
    """Always the same drafter, or always plain steps."""

    def __init__(self, drafter: Drafter | None):
        self.drafter = drafter
        self.max_nodes = 1 if drafter is None else drafter.max_nodes
        self.max_depth = 0 if drafter is None else drafter.max_depth

    def choose(self, running: Running) -> Drafter | None:
        return self.drafter

    def record(self, outcome: StepOutcome) -> None:
        """There is nothing to learn."""
