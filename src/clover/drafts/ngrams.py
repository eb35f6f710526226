"""Where the end of a text stood before, and what followed there: the index of prompt lookup.

Recall looks for the same on the device, for each node of a tree (`clover.drafts.copies`).
"""

from collections.abc import Iterable

_MATCH = 3  # So many tokens must match before prompt lookup proposes what followed.
_LONGEST_MATCH = 64  # Longer matches count as this long.


class RepeatingText:
    """A text, and the last earlier place where its end stood. That place is followed while the tokens after it agree.

    Attributes:
        match: how many tokens at the end also stand before that place; 0 if there is no such place, 64 at most.
        judged: of each token after the prompt that could have been looked up: the match before it, and whether
            the token looked up was right. The reader may empty it.
    """

    def __init__(self, prompt: Iterable[int]):
        self.match = 0
        self.judged: list[tuple[int, bool]] = []
        self._text, self._next = list[int](), 0
        self._after: dict[tuple[int, ...], int] = {}  # The last place after each run of so many tokens.
        self.extend(prompt)
        self.judged.clear()

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add the tokens that the text goes on with."""
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
        """Return the `count` tokens that followed, none if none did; at the text's end they go on with themselves.

        >>> RepeatingText([1, 2, 3, 9, 1, 2, 3]).following(6)
        [9, 1, 2, 3, 9, 1]
        """
        found = self._text[self._next : self._next + count] if self.match else []
        while found and len(found) < count:
            found += found[: count - len(found)]
        return found

    def _matching(self) -> int:
        """Return how many tokens before the place found are also the end of the text."""
        text, place = self._text, self._next
        most = min(_LONGEST_MATCH, place)
        return next((n for n in range(_MATCH, most) if text[place - 1 - n] != text[-1 - n]), most)
