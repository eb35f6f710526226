"""The engine's interface to drafters and policies. A drafter grows one token tree per sequence and step; a policy
chooses the drafter of each step.

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
    """The input of a drafter: the sequences of the next step."""

    @property
    def root(self) -> Tensor:
        """Return the newest token of each text, which neither model has run, Long [B, 1]."""
        ...

    @property
    def sampler(self) -> Sampler | GumbelNoise:
        """Return the rules and the random numbers by which the sequences' tokens are chosen."""
        ...

    def commit_draft(self) -> tuple[DraftSession, Tensor]:
        """Commit all positions in the draft; return its session, and its logits [B, 1, V] for depth 1."""
        ...

    def texts(self) -> Sequence[RepeatingText | None]:
        """Return the text of each sequence; None for a sequence that is decoded plainly."""
        ...


@dataclass(frozen=True)
class CommittedInput:
    """A `DraftInput` whose draft has committed everything, and whose texts are unknown."""

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
        max_expanded: the most nodes that the draft runs, if compiled steps can grow the trees. 0 if they cannot,
            because rows depend on each other, or on random numbers that `GumbelNoise` does not have.
        d2t: Long [V], the tokens of the draft's logits; None for the whole vocabulary.
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
    """The information for a policy about the next step.

    Attributes:
        batch_size: number of sequences.
        room: positions between the end of the longest text and the target's longest run.
        texts: returns the texts that get drafts; called only by policies that read texts.
    """

    batch_size: int
    room: int = field(default=sys.maxsize, compare=False)
    texts: Callable[[], Sequence[RepeatingText]] = field(default=tuple, compare=False)


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one decoding step.

    Attributes:
        nodes: nodes of each tree, root included; 1 for a plain step.
        emitted: emitted tokens of each sequence that gets drafts, bonus token included; empty if all decode plainly.
        seconds: seconds of the whole step.
        backlog: positions per sequence that the draft committed in this step, beyond those of the last step.
    """

    nodes: int
    emitted: tuple[int, ...]
    seconds: float
    backlog: int


class Policy(Protocol):
    """Chooses the drafter of each step, and learns from the outcome. The text never depends on it."""

    max_nodes: int
    max_depth: int

    def choose(self, upcoming: UpcomingStep) -> Drafter:
        """Choose the drafter of the next step."""
        ...

    def record(self, outcome: StepOutcome) -> None:
        """Learn from the outcome of the last chosen step."""


class FixedPolicy(Policy):
    """A policy that always chooses the same drafter."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.max_nodes, self.max_depth = drafter.max_nodes, drafter.max_depth

    def choose(self, upcoming: UpcomingStep) -> Drafter:
        return self.drafter
