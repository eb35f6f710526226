"""Where the end of a text stood before, and chains that copy what followed there.

The index is that of prompt lookup (LLMA, 2304.04487) and of its relatives that follow a match as long as it holds
(SAM-Decoding, 2411.10666).

Shapes: B batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from clover.tree import TokenTree, TreeShape

SHORTEST_MATCH = 3  # tokens that have to stand in both places
_LONGEST_MATCH = 64  # further tokens in both places are not counted


class Repetition:
    """One text, and where its end stood before: the last such place when it was found, followed while it holds.

    Args:
        prompt: what the text starts with.

    Attributes:
        text: all of it.
        length: tokens before the end that stand before that place, too; 0 where there is none. At most 64.
        judged: of each token after the prompt that a copy could have had: the length there, and whether it was right.
            Whoever reads it may empty it.
    """

    def __init__(self, prompt: Iterable[int]):
        self.text: list[int] = []
        self.length = 0
        self.judged: list[tuple[int, bool]] = []
        self._places: dict[tuple[int, ...], int] = {}  # n-gram -> place after it, the last one
        self._next = 0  # place of the token that a copy starts with
        self.extend(prompt)
        self.judged.clear()

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in what the text goes on with."""
        for token in tokens:
            right = self.length > 0 and self.text[self._next] == token
            if self.length:
                self.judged.append((self.length, right))
            self.text.append(token)
            before = self._found()
            if right:
                self._next, self.length = self._next + 1, min(self.length + 1, _LONGEST_MATCH)
            else:
                self._next, self.length = before, self._match(before)

    def copy(self, count: int) -> list[int]:
        """The `count` tokens that followed, none where there is no such place.

        Where they run into the end of the text they go on with themselves.

        >>> Repetition([1, 2, 3, 9, 1, 2, 3]).copy(6)
        [9, 1, 2, 3, 9, 1]
        """
        found = self.text[self._next : self._next + count] if self.length else []
        while found and len(found) < count:
            found += found[: count - len(found)]
        return found

    def _found(self) -> int:
        """The last place after the n-gram that the text now ends with, 0 if none; from now on that is the end."""
        ngram = tuple(self.text[-SHORTEST_MATCH:])
        before = self._places.get(ngram, 0)
        self._places[ngram] = len(self.text)
        return before

    def _match(self, place: int) -> int:
        """How many tokens before a place are those at the end, given that the n-grams are; 0 for the start."""
        most = min(_LONGEST_MATCH, place)
        if most < SHORTEST_MATCH:
            return 0
        further = range(SHORTEST_MATCH, most)
        return next((n for n in further if self.text[place - 1 - n] != self.text[-1 - n]), most)


class Copier:
    """Proposes a chain of copied tokens in each row that repeats itself, and nothing in the others.

    Args:
        length: of the chain.
    """

    def __init__(self, length: int):
        self.max_depth, self.max_nodes = length, length + 1
        self._shape = TreeShape.chain(length)

    def grow(self, root: Tensor, repetitions: Sequence[Repetition | None]) -> TokenTree:
        """Make one tree per row.

        Args:
            root: Long [B] the last token of each text.
            repetitions: of each row; None where there is no room for a tree.
        """
        copies = [None if one is None else one.copy(self.max_depth) for one in repetitions]
        tokens = [copy or [0] * self.max_depth for copy in copies]
        tokens = torch.tensor(tokens, device=root.device)
        tree = TokenTree.from_shape(self._shape, torch.cat((root.unsqueeze(1), tokens), dim=1))
        if all(copies):
            return tree
        return tree.without(torch.tensor([[not copy] for copy in copies], device=root.device))
