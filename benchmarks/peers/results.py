"""What was measured of an engine, and what follows from it, with errors over prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi, sqrt
from statistics import median, stdev

from clover.measure.report.statistics import Estimate

Ratios = list[float]


@dataclass(frozen=True)
class Block:
    """One batch of prompts, decoded by an engine and by the anchor right before or after.

    `texts` are digests of the engine's texts.
    """

    tokens: int
    seconds: float
    anchor_tokens: int
    anchor_seconds: float
    texts: list[str]

    @property
    def ratio(self) -> float:
        """Return the engine's tokens/s divided by the anchor's."""
        return (self.tokens / self.seconds) / (self.anchor_tokens / self.anchor_seconds)


@dataclass(frozen=True)
class Result:
    """One engine at one batch size: a line of the file of results.

    Args:
        plain: the name of the same engine without speculation.
        prompts: the names of their files; `digest` is one of their tokens.
        left_out: why it did not run; all measures are then missing.
        blocks: one per batch of prompts, in their order.
        perplexity: of plain engines, on the text with `perplexity_tokens` tokens.
        peak_memory: bytes in memory at most up to this batch size, without the perplexity, mapped files included;
            `own_memory` without them, once it is loaded.
        startup_seconds: from the start of the process to the first token of a short prompt.
    """

    engine: str
    plain: str
    prompts: str
    digest: str
    batch_size: int
    max_new_tokens: int
    machine: str
    threads: int
    date: str
    revision: str
    command: str
    left_out: str | None = None
    blocks: list[Block] = field(default_factory=list)
    perplexity: float | None = None
    perplexity_tokens: int = 0
    peak_memory: int = 0
    own_memory: int = 0
    startup_seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def group(self) -> tuple[str, str, int, int]:
        """Return what must be equal for two results to be compared."""
        return self.prompts, self.digest, self.batch_size, self.max_new_tokens

    @property
    def tokens_per_second(self) -> float:
        """Return those of all texts together, prompts included in the time."""
        return sum(block.tokens for block in self.blocks) / sum(block.seconds for block in self.blocks)

    @property
    def of_anchor(self) -> Estimate:
        """Return how many times as fast as the anchor it is."""
        return middle([block.ratio for block in self.blocks])


def middle(values: Ratios) -> Estimate:
    """Return the median, with its standard error for normally distributed values: √(π/2) times that of the mean.

    >>> middle([2.0, 1.0, 3.0]).text(), middle([2.0]).text()
    ('2.00 ± 0.72', '2.00')
    """
    error = sqrt(pi / 2 / len(values)) * stdev(values) if len(values) > 1 else None
    return Estimate(median(values), error)


def over_plain(drafted: Result, plain: Result) -> Estimate:
    """Return how many times as fast as its own plain decoding an engine is; both were compared with the anchor."""
    assert drafted.group == plain.group
    return middle([one.ratio / other.ratio for one, other in zip(drafted.blocks, plain.blocks, strict=True)])


def equal_texts(drafted: Result, plain: Result) -> tuple[int, int]:
    """Return how many texts are those of plain decoding, token by token, and how many there are."""
    pairs = [
        (a, b)
        for one, other in zip(drafted.blocks, plain.blocks, strict=True)
        for a, b in zip(one.texts, other.texts, strict=True)
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def newest(results: list[Result]) -> dict[tuple[str, str, int, int], dict[str, Result]]:
    """Return for each group the last result of each engine; one that ran stands before one that was left out."""
    found: dict[tuple[str, str, int, int], dict[str, Result]] = {}
    for result in results:
        group = found.setdefault(result.group, {})
        if result.left_out is None or result.engine not in group:
            group[result.engine] = result
    return found
