"""Where texts stand under a grammar. The grammars are those of `clover.grammar`; this is the part that decoding calls.

Shapes: V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class GrammarState(ABC):
    """One text under a grammar, which says which tokens may follow it. States never change."""

    @property
    @abstractmethod
    def error(self) -> str:
        """Return why no token can be chosen after this text, in one line; "" if one can."""

    @abstractmethod
    def fresh(self) -> GrammarState:
        """Return a copy of the state for another decoding, without those that it remembers to come after it."""

    @abstractmethod
    def after(self, token: int) -> GrammarState | None:
        """Return the state of the text with one more token; None if the grammar excludes the token."""

    @property
    @abstractmethod
    def excluded(self) -> Tensor | None:
        """Return which tokens may not follow, Bool [V] on the CPU; None if all may."""

    @property
    @abstractmethod
    def only(self) -> int | None:
        """Return the token that follows in any case; None if there are several."""
