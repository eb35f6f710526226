"""When to copy: what followed the end of a text where it stood before is proposed, and the draft is not asked.

Texts repeat themselves: code, quotations, tables, answers about a document, and greedy texts that go in circles. A
drafted token costs a depth of the draft; a copied one costs its place in the target's pass and nothing else. That is
prompt lookup for the steps at which it pays, as SuffixDecoding (2411.04975) and SAM-Decoding (2411.10666) put it beside
a trained draft. How good copies are, no step has to be spent on: every token that is emitted, whatever proposed it, is
or is not the one that a copy would have had there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from clover.drafting.difficulty import temperature_class
from clover.drafting.policy import Running
from clover.drafting.repetition import SHORTEST_MATCH, Copier, Repetition
from clover.drafting.tuning import PLAIN

LENGTHS = (3, 7, 15, 31)  # tokens that a step may copy
# A copy's next token is as likely as others were that had about as many tokens before them in both places.
_CLASSES = (SHORTEST_MATCH, 4, 6, 8, 12, 16, 24, 32, 48)
_PRESUMED = (0.6, 0.7, 0.75, 0.8, 0.8, 0.85, 0.9, 0.95, 0.95)  # before any was seen
_PRESUMED_TOKENS, _REMEMBERED_TOKENS = 8.0, 256.0


@dataclass
class _Chance:
    """Copied tokens that were right, of those that were judged; older ones count less."""

    right: float
    judged: float

    @property
    def value(self) -> float:
        return self.right / self.judged

    def learn(self, right: bool) -> None:
        kept = 1.0 if self.judged < _REMEMBERED_TOKENS else 1.0 - 1.0 / _REMEMBERED_TOKENS
        self.right, self.judged = kept * self.right + right, kept * self.judged + 1.0


class CopyEstimate:
    """How many copied tokens are accepted, by how many tokens before them stand in both places.

    A copied token that is right makes the match longer by one, so the next one is likelier.
    """

    def __init__(self) -> None:
        self._chances = [_Chance(p * _PRESUMED_TOKENS, _PRESUMED_TOKENS) for p in _PRESUMED]

    def learn(self, repetition: Repetition) -> None:
        """Learn from the tokens that were judged since it was last asked."""
        for length, right in repetition.judged:
            self._of(length).learn(right)
        repetition.judged.clear()

    def accepted(self, length: int, counts: Sequence[int]) -> list[float]:
        """Tokens accepted on average of so many copied ones, for rising counts, where `length` tokens match."""
        found, reached, total = list[float](), 1.0, 0.0
        for copied in range(counts[-1] if length else 0):
            reached *= self._of(length + copied).value
            total += reached
            if copied + 1 == counts[len(found)]:
                found.append(total)
        return found or [0.0] * len(counts)

    def _of(self, length: int) -> _Chance:
        return self._chances[bisect_right(_CLASSES, length) - 1]


def copier_name(length: int) -> str:
    """What costs are known by of steps that copy so many tokens."""
    return f"copy:{length}"


class Copying:
    """Which steps of copies there are, and how many tokens each would yield at present.

    Args:
        lengths: tokens that a step may copy, rising.

    Attributes:
        lengths: as given; empty if no step is to copy.
        copiers: by name.
        repetitions: of each row at present.
    """

    def __init__(self, lengths: Sequence[int]):
        self.lengths = tuple(lengths)
        self.copiers = {copier_name(length): Copier(length) for length in lengths}
        self.repetitions: Sequence[Repetition] = ()
        self._estimates = defaultdict[int, CopyEstimate](CopyEstimate)  # by class of temperature
        self._estimate = self._estimates[temperature_class(0.0)]

    def enter(self, running: Running) -> None:
        """Go on with these rows, and learn from what they have become."""
        if self.lengths:
            self._estimate = self._estimates[temperature_class(running.temperature)]
            self.repetitions = running.repetitions()
            for one in self.repetitions:
                self._estimate.learn(one)

    @property
    def repeats(self) -> bool:
        """Whether there is something to copy in every row."""
        return bool(self.repetitions) and all(one.length for one in self.repetitions)

    def tokens(self, costs: Mapping[str, float], room: int) -> dict[str, float]:
        """Tokens per row, the bonus token included, that a step with each copier is expected to yield.

        Those that make a row slower than plain steps are left out.

        Args:
            costs: of a step with each, and of a plain one.
            room: positions that are left.
        """
        matches, found = [one.length for one in self.repetitions], {}
        for length, accepted in self._accepted(matches).items():
            name = copier_name(length)
            if length < room and 1 + min(accepted) >= costs[name] / costs[PLAIN]:
                found[name] = 1 + fmean(accepted)
        return found

    def _accepted(self, matches: Sequence[int]) -> dict[int, list[float]]:
        """Of so many copied tokens those that are accepted in each row, where so many match before them."""
        known = {match: self._estimate.accepted(match, self.lengths) for match in set(matches)}
        return {length: [known[match][at] for match in matches] for at, length in enumerate(self.lengths)}
