"""Where the n-grams of a text led: an index for the draft system `lookup`, and a smaller one for prompt lookup."""

import math
from collections.abc import Iterable, Iterator

_TIE = 0.5  # logits fall by at most this for the sake of ties: less than log 2, the step between two n-gram lengths
_MATCH = 3  # tokens that must stand in both places before prompt lookup proposes what followed
_LONGEST_MATCH = 64  # further tokens in both places are not counted


class NgramIndex:
    """One text and where each of its n-grams, `shortest` to `longest` tokens, led; kept up to date token by token."""

    def __init__(self, shortest: int, longest: int):
        self.lengths = range(longest, shortest - 1, -1)
        self.text: list[int] = []
        # n-gram -> token after it -> where it stands, rising
        self._places: dict[tuple[int, ...], dict[int, list[int]]] = {}

    def append(self, token: int) -> None:
        """Take in the next token of the text."""
        for ngram in self._ends():
            self._places.setdefault(ngram, {}).setdefault(token, []).append(len(self.text))
        self.text.append(token)

    def crop(self, length: int) -> None:
        """Forget the text from `length` on."""
        while len(self.text) > length:
            token = self.text.pop()
            for ngram in self._ends():
                followers = self._places[ngram]
                followers[token].pop()
                if not followers[token]:
                    del followers[token]
                if not followers:
                    del self._places[ngram]

    def end(self) -> tuple[int, ...]:
        """The last tokens of the text, as many as the longest n-gram has."""
        return tuple(self.text[-self.lengths[0] :])

    def log_shares(self, end: tuple[int, ...]) -> tuple[dict[int, float], float]:
        """What followed the ends of `end`, best first.

        Returns the logarithm of each such token's share, and of the mass that all others have together; relative, and
        lowered a little from rank to rank, so that the more recent of two equal ones stands above the other.
        """
        shares: dict[int, float] = {}
        mass = 0.0
        for n in self.lengths:
            followers = self._places.get(end[-n:], {}) if n <= len(end) else {}
            new = [(len(at), at[-1], token) for token, at in followers.items() if token not in shares]
            total = sum(count for count, _, _ in new)
            for count, _, token in sorted(new, reverse=True):
                shares[token] = mass + math.log(count / total)
            mass = min(shares.values(), default=math.log(2)) - math.log(2)
        step = _TIE / max(len(shares), 1)
        return {token: share - step * rank for rank, (token, share) in enumerate(shares.items())}, mass

    def _ends(self) -> Iterator[tuple[int, ...]]:
        """The n-grams that the text ends with."""
        for n in self.lengths:
            if n <= len(self.text):
                yield tuple(self.text[-n:])


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
        self._after: dict[tuple[int, ...], int] = {}  # the last place after so many tokens
        self.extend(prompt)
        self.judged.clear()

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in what the text goes on with."""
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
        """The `count` tokens that followed, none if none did; at the text's end they go on with themselves.

        >>> RepeatingText([1, 2, 3, 9, 1, 2, 3]).following(6)
        [9, 1, 2, 3, 9, 1]
        """
        found = self._text[self._next : self._next + count] if self.match else []
        while found and len(found) < count:
            found += found[: count - len(found)]
        return found

    def _matching(self) -> int:
        """How many tokens before the place found are those at the end of the text."""
        text, place = self._text, self._next
        most = min(_LONGEST_MATCH, place)
        return next((n for n in range(_MATCH, most) if text[place - 1 - n] != text[-1 - n]), most)
