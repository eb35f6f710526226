"""The states of texts under a grammar: the interface of `clover.grammar` that decoding calls.

Shapes: V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class GrammarState(ABC):
    """The state of one text under a grammar; it knows which tokens may follow. States never change."""

    @property
    @abstractmethod
    def error(self) -> str:
        """Return why no token can be chosen after this text, in one line; "" if one can."""

    @abstractmethod
    def fresh(self) -> GrammarState:
        """Return a copy of the state for another decoding, without its stored successors."""

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
        """Return the only token that may follow; None if several may."""
