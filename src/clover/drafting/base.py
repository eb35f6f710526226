"""The interface of the engine to drafters, which grow one token tree per sequence and step, and to policies,
which choose the drafter of each step.

Shapes: B batch, V the draft's vocabulary.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from clover.drafts import DraftSession
from clover.drafts.ngrams import RepeatingText
from clover.sampling import GumbelNoise, Sampler
from clover.tree import TokenTree


class DraftInput(Protocol):
    """What a drafter reads of the sequences that the next step is for."""

    @property
    def root(self) -> Tensor:
        """Return the newest token of each text, which neither model has run, Long [B, 1]."""
        ...

    @property
    def sampler(self) -> Sampler | GumbelNoise:
        """Return how the sequences' tokens are chosen, and by which random numbers."""
        ...

    def commit_draft(self) -> tuple[DraftSession, Tensor]:
        """Let the draft commit all that the target has run; return its session, and logits [B, 1, V] for depth 1."""
        ...

    def texts(self) -> Sequence[RepeatingText | None]:
        """Return the text of each sequence; None for those that are decoded plainly."""
        ...


@dataclass(frozen=True)
class CommittedInput:
    """A `DraftInput` whose draft has committed everything, and whose texts are not known."""

    root: Tensor
    sampler: Sampler | GumbelNoise
    session: DraftSession
    logits: Tensor

    def commit_draft(self) -> tuple[DraftSession, Tensor]:
        return self.session, self.logits

    def texts(self) -> Sequence[RepeatingText | None]:
        return ()


class Drafter:
    """Grows the trees of a step.

    Attributes:
        max_depth: no tree is deeper.
        max_nodes: no tree has more nodes, root included.
        max_expanded: nodes that the draft runs at most, where compiled steps can grow the trees. 0 where they cannot,
            because rows depend on each other, or on random numbers that `GumbelNoise` does not have.
        d2t: Long [V], the tokens that the draft's logits are of; None for the whole vocabulary.
        copies: whether the trees are copied from the texts.
    """

    max_depth: int
    max_nodes: int
    max_expanded = 0
    d2t: Tensor | None = None
    copies = False

    def grow(self, batch: DraftInput) -> TokenTree:
        """Draft one tree per sequence."""
        raise NotImplementedError


@dataclass(frozen=True)
class UpcomingStep:
    """What a policy may know of the next step.

    Attributes:
        batch_size: sequences.
        room: positions that the longest text has left before the target's longest run.
        texts: returns the texts that are drafted for; called only by policies that read them.
    """

    batch_size: int
    room: int = field(default=sys.maxsize, compare=False)
    texts: Callable[[], Sequence[RepeatingText]] = field(default=tuple, compare=False)


@dataclass(frozen=True)
class StepOutcome:
    """How one decoding step went.

    Attributes:
        nodes: of each tree, root included; 1 for a plain step.
        emitted: tokens of each sequence that is drafted for, bonus token included; empty if all are decoded plainly.
        seconds: of the whole step.
        backlog: positions per sequence that the draft committed in this step, beyond those of the last step.
    """

    nodes: int
    emitted: tuple[int, ...]
    seconds: float
    backlog: int


class Policy(Protocol):
    """Decides before each step what drafts, and learns from how it went. The text never depends on it."""

    max_nodes: int
    max_depth: int

    def choose(self, upcoming: UpcomingStep) -> Drafter:
        """Choose what drafts in the next step."""
        ...

    def record(self, outcome: StepOutcome) -> None:
        """Learn how the step went that was chosen last."""


class FixedPolicy(Policy):
    """Always the same drafter."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.max_nodes, self.max_depth = drafter.max_nodes, drafter.max_depth

    def choose(self, upcoming: UpcomingStep) -> Drafter:
        return self.drafter
