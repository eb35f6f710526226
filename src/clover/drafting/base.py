"""What the engine asks of a drafter: one token tree per sequence and step. Plain decoding is the smallest one.

Shapes: B batch, V the draft's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from clover.drafts import DraftSession
from clover.drafts.ngrams import RepeatingText
from clover.sampling import GumbelNoise, Sampler
from clover.tree import TokenTree


@dataclass(frozen=True)
class DraftInput:
    """What one step offers a drafter; what costs time is done when it is asked for.

    Attributes:
        root: Long [B], the last committed token of each sequence.
        sampler: how the sequences' tokens are chosen, and by which random numbers.
        catch_up: lets the draft take in all that the target has run. Returns the draft's state and its logits [B, V]
            for the root's children.
        texts: the text of each sequence; None where there is no room for a tree.
    """

    root: Tensor
    sampler: Sampler | GumbelNoise
    catch_up: Callable[[], tuple[DraftSession, Tensor]]
    texts: Callable[[], Sequence[RepeatingText | None]]


class Drafter(Protocol):
    """Grows the trees of a step.

    Attributes:
        max_depth: no tree is deeper.
        max_nodes: no tree has more nodes, root included.
    """

    max_depth: int
    max_nodes: int

    def grow(self, given: DraftInput) -> TokenTree:
        """Draft one tree per sequence."""
        ...


class PlainDrafter:
    """Plain decoding: the tree is its root alone."""

    max_depth = 0
    max_nodes = 1

    def grow(self, given: DraftInput) -> TokenTree:
        return TokenTree.root_only(given.root.unsqueeze(1))


PLAIN_DRAFTER = PlainDrafter()
