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
_TOKEN_BITS = 24  # of a token in the number that stands for an n-gram
_NGRAM = (1 << SHORTEST_MATCH * _TOKEN_BITS) - 1


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
        self._places: dict[int, int] = {}  # n-gram -> place after it, the last one
        self._ngram = 0  # that the text ends with
        self._next = 0  # place of the token that a copy starts with
        self.extend(prompt)
        self.judged.clear()

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in what the text goes on with."""
        text, places, following, length = self.text, self._places, self._next, self.length
        for token in tokens:
            right = length > 0 and text[following] == token
            if length:
                self.judged.append((length, right))
            text.append(token)
            self._ngram = (self._ngram << _TOKEN_BITS | token) & _NGRAM
            before = places.get(self._ngram, 0)
            places[self._ngram] = len(text)
            if right:
                following, length = following + 1, min(length + 1, _LONGEST_MATCH)
            else:
                following, length = before, self._match(before)
        self._next, self.length = following, length

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
