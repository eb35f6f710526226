"""The index of prompt lookup: it finds where the end of a text occurred before, and what followed there.

Recall does the same on the device, for each node of a tree (`clover.drafts.copies`).
"""

from collections.abc import Iterable

_MATCH = 3  # the number of tokens that must match before prompt lookup proposes tokens
_LONGEST_MATCH = 64  # Longer matches count as this long.


class RepeatingText:
    """A text, and the last earlier occurrence of its end. That place moves on with the text while their tokens agree.

    Attributes:
        match: how many tokens at the end of the text also precede that place, at most 64; 0 if there is no such place.
        judged: a pair for each token after the prompt that had a proposal: the match before it, and whether the
            proposed token was right. The reader may clear the list.
    """

    def __init__(self, prompt: Iterable[int]):
        self.match = 0
        self.judged: list[tuple[int, bool]] = []
        self._text, self._next = list[int](), 0
        self._after: dict[tuple[int, ...], int] = {}  # the last place after each run of `_MATCH` tokens
        self.extend(prompt)
        self.judged.clear()

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        text = self._text
        for token in tokens:
            right = self.match > 0 and text[self._next] == token
            if self.match:
                self.judged.append((self.match, right))
            self._after[tuple(text[-_MATCH:])] = len(text)
            text.append(token)
            if right:
                self._next, self.match = self._next + 1, min(self.match + 1, _LONGEST_MATCH)
            else:
                self._next = self._after.get(tuple(text[-_MATCH:]), 0)
                self.match = self._matching()

    def following(self, count: int) -> list[int]:
        """Return the `count` tokens that followed, or none without a match; at the text's end they repeat.

        >>> RepeatingText([1, 2, 3, 9, 1, 2, 3]).following(6)
        [9, 1, 2, 3, 9, 1]
        """
        found = self._text[self._next : self._next + count] if self.match else []
        while found and len(found) < count:
            found += found[: count - len(found)]
        return found

    def _matching(self) -> int:
        """Return how many tokens before the place found equal the end of the text."""
        text, place = self._text, self._next
        most = min(_LONGEST_MATCH, place)
        return next((n for n in range(_MATCH, most) if text[place - 1 - n] != text[-1 - n]), most)
