"""When to copy: what followed the end of a text where it stood before is proposed, and the draft is not asked.

Texts repeat themselves: code, quotations, tables, answers about a document, and greedy texts that go in circles. A
drafted token costs a depth of the draft; a copied one costs its place in the target's pass and nothing else. That is
prompt lookup for the steps at which it pays, as SuffixDecoding (2411.04975) and SAM-Decoding (2411.10666) put it beside
a trained draft. How good copies are, no step has to be spent on: every token that is emitted, whatever proposed it, is
or is not the one that a copy would have had there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clover.drafting.estimates import temperature_class
from clover.drafting.policy import Running
from clover.drafting.repetition import SHORTEST_MATCH, Copier, Repetition

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


@dataclass(frozen=True)
class Yield:
    """Tokens per row that a step is expected to yield, the bonus token included.

    Attributes:
        mean: of the rows.
        least: of the row that has least.
    """

    mean: float
    least: float


class Copying:
    """Which steps of copies there are, and how many tokens each would yield at present.

    Args:
        lengths: tokens that a step may copy, rising.

    Attributes:
        copiers: by name.
    """

    def __init__(self, lengths: Sequence[int]):
        self.copiers = {copier_name(length): Copier(length) for length in lengths}
        self._estimates: dict[int, CopyEstimate] = {}  # by class of temperature

    def yields(self, running: Running) -> dict[str, Yield]:
        """What a step with each copier is expected to yield; empty if no text repeats itself."""
        if not self.copiers:
            return {}
        estimate = self._estimates.setdefault(temperature_class(running.temperature), CopyEstimate())
        repetitions = running.repetitions()
        for one in repetitions:
            estimate.learn(one)
        lengths = Counter(one.length for one in repetitions)
        if not any(lengths):
            return {}
        counts = [copier.max_depth for copier in self.copiers.values()]
        rows = [(estimate.accepted(length, counts), rows) for length, rows in lengths.items()]
        return {
            name: Yield(
                mean=1 + sum(accepted[at] * count for accepted, count in rows) / len(repetitions),
                least=1 + min(accepted[at] for accepted, _ in rows),
            )
            for at, name in enumerate(self.copiers)
        }
