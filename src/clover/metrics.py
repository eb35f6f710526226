"""Count the tokens that decoding steps emit, and the draft's acceptance rate at each depth."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest


@dataclass
class Acceptance:
    """Acceptance counts of any number of decoding steps; ``+`` merges counts of sequences, runs or machines.

    Attributes:
        histogram: ``histogram[n]`` steps accepted n draft tokens.
        attempts: ``attempts[d - 1]`` steps accepted a token at depth d - 1 (the root counts) and had a draft at
            depth d.
        drafted: drafted depths, summed over the steps; several candidates at one depth count once.

    Two steps have a draft of depth 3; the first accepts two tokens, the second none:

    >>> acceptance = Acceptance()
    >>> acceptance.record(count=3, drafted_depth=3)
    >>> acceptance.record(count=1, drafted_depth=3)
    >>> acceptance.tau, acceptance.acceptance_per_depth
    (2.0, [0.5, 1.0, 0.0])
    """

    histogram: list[int] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    drafted: int = 0

    def record(self, count: int, drafted_depth: int, cut: bool = False) -> None:
        """Add a step: emitted tokens, the bonus token included, and the depth of the tree, 0 without a draft.

        A step is `cut` if the text ended within it: then the last token counts as the bonus token, and the draft at its
        depth is not counted.
        """
        assert 1 <= count <= drafted_depth + 1, (count, drafted_depth)
        _grow(self.histogram, count)
        self.histogram[count - 1] += 1
        reached = min(count - cut, drafted_depth)
        _grow(self.attempts, reached)
        for depth in range(reached):
            self.attempts[depth] += 1
        self.drafted += drafted_depth

    def __add__(self, other: Acceptance) -> Acceptance:
        pairs = (self.histogram, other.histogram), (self.attempts, other.attempts)
        histogram, attempts = (list(map(sum, zip_longest(*pair, fillvalue=0))) for pair in pairs)
        return Acceptance(histogram, attempts, self.drafted + other.drafted)

    @property
    def steps(self) -> int:
        """Count the decoding steps."""
        return sum(self.histogram)

    @property
    def accepted(self) -> int:
        """Count the accepted draft tokens."""
        return sum(length * steps for length, steps in enumerate(self.histogram))

    @property
    def emitted(self) -> int:
        """Count the emitted tokens: the accepted ones and one bonus token per step."""
        return self.steps + self.accepted

    @property
    def tau(self) -> float:
        """Return the acceptance length τ: tokens per step, the bonus token included; 0 before the first step."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def acceptance_per_depth(self) -> list[float]:
        """Return the acceptance rate at depths 1, 2, …: the share of the steps with a draft there that accepted it."""
        return [sum(self.histogram[depth:]) / tried for depth, tried in enumerate(self.attempts, start=1)]

    def to_dict(self) -> dict[str, object]:
        """Return the metrics for JSON."""
        return {
            "steps": self.steps,
            "emitted": self.emitted,
            "drafted": self.drafted,
            "tau": self.tau,
            "acceptance_per_depth": self.acceptance_per_depth,
            "histogram": list(self.histogram),
        }


def _grow(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
