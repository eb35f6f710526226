"""From the runs of one method to its metrics: speed, where the time goes, and how near the ideal it comes.

A draft that costs nothing would make decoding τ · T_plain_step / T_verify_step times as fast; `ideal_share` is the
speed-up divided by that. The speed-up counts the prefill and the ideal does not; without it the share would be that
of the target's pass in a step, `verify_share`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from clover.bench.ceilings import Limits
from clover.bench.methods import Method
from clover.engine import STEP_PHASES
from clover.interleaved import Run, acceptance_of, decode, speed, speedups, texts_of
from clover.report.statistics import Estimate, ratio


@dataclass(frozen=True)
class Metrics:
    """One line of the benchmark: a method at one batch size and temperature.

    Args:
        method, label: its name in results, and for people.
        tokens_per_second, speedup: of all batches together, of each the median of its rounds, prefill included; the
            speed-up is against our plain decoding.
        tau: tokens per decoding step and text, the bonus token included.
        speedup_error, tau_error: standard errors over batches and over prompts; None where there is but one.
        ideal_speedup, ideal_share: see the head of this file; None without a draft of ours.
        draft_share, verify_share: drafting and the target's pass, of a decoding step; None where steps are not ours.
        peak_memory_bytes: while decoding, weights included; None where it was not measured.
        identical: whether all texts are those of our plain decoding, in every round; None where they need not be.
        identical_texts, texts: of so many texts, how many are.
        rounds_tokens_per_second, rounds_speedup: of every round.
        speedup_per_batch: of every batch, the first prompt's first.
        acceptance_per_depth: share accepted at depth 1, 2, …
        step_milliseconds: by phase; None where the steps are not ours.
        bandwidth_share: the least time for reading the target's weights once, divided by the time of a step.
        arithmetic_share: the least time for the target's products of a step, divided by the time of the step.
    """

    method: str
    label: str
    batch_size: int
    temperature: float
    tokens_per_second: float
    speedup: float
    speedup_error: float | None
    tau: float
    tau_error: float | None
    ideal_speedup: float | None
    ideal_share: float | None
    draft_share: float | None
    verify_share: float | None
    peak_memory_bytes: int | None
    identical: bool | None
    identical_texts: int
    texts: int
    rounds_tokens_per_second: tuple[float, ...]
    rounds_speedup: tuple[float, ...]
    speedup_per_batch: tuple[float, ...]
    acceptance_per_depth: tuple[float, ...]
    step_milliseconds: dict[str, float] | None
    bandwidth_share: float | None
    arithmetic_share: float | None


@dataclass(frozen=True)
class Measured:
    """One method in one setting, as it was run.

    Args:
        rounds: per round the run of each batch.
        steps: see `step_seconds`; None where the steps are not ours.
    """

    method: Method
    rounds: Sequence[Sequence[Run]]
    steps: dict[str, float] | None

    @classmethod
    def of(cls, method: Method, rounds: Sequence[Sequence[Run]], requests: Sequence) -> Measured:
        """Join the runs with the times of a step; on a GPU those of one more run, which waits after each phase."""
        if method.engine is None:
            return cls(method, rounds, None)
        runs = [run for part in rounds for run in part]
        if method.engine.target.device.type == "cuda":
            runs = [decode(method.engine, requests, synchronize=True)]
        return cls(method, rounds, step_seconds(runs))

    @property
    def batches(self) -> list[tuple[int, float]]:
        """Of each batch its new tokens, and the median seconds of its rounds."""
        return [
            (runs[0].tokens, median(run.seconds for run in runs)) for runs in zip(*self.rounds, strict=True)
        ]

    @property
    def tau(self) -> Estimate:
        """Tokens per step over texts, or over batches where the method tells no more."""
        parts = [part for run in self.rounds[0] for part in (run.acceptances or (run.acceptance,))]
        return ratio([part.emitted for part in parts], [part.steps for part in parts])


def step_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """Mean seconds of a decoding step by phase; "other" is what no phase accounts for, "total" all of it."""
    steps = sum(run.clock.steps for run in runs)
    phases = {name: sum(run.clock.seconds[name] for run in runs) / steps for name in STEP_PHASES}
    total = sum(run.seconds - run.clock.seconds["prefill"] for run in runs) / steps
    return phases | {"other": total - sum(phases.values()), "total": total}


def speedup(found: Measured, plain: Measured) -> tuple[Estimate, tuple[float, ...]]:
    """That of all batches together, and of each; where texts differ, plain decoding is scaled to as many tokens."""
    own, other = found.batches, plain.batches
    above = [base * (tokens / count) for (tokens, _), (count, base) in zip(own, other, strict=True)]
    below = [seconds for _, seconds in own]
    return ratio(above, below), tuple(a / b for a, b in zip(above, below, strict=True))


def metrics(
    found: Measured,
    plain: Measured,
    batch_size: int,
    temperature: float,
    limits: Limits | None = None,
    peak_memory: int | None = None,
) -> Metrics:
    """Put together what was found about one method.

    Args:
        plain: our plain decoding in the same setting.
        limits: of the device, if they were measured.
        peak_memory: bytes.
    """
    assert plain.steps is not None
    method, steps, tau = found.method, found.steps, found.tau
    gain, gains = speedup(found, plain)
    runs = [run for part in found.rounds for run in part]
    expected = texts_of(plain.rounds[0])
    written = zip(*map(texts_of, found.rounds), strict=True)  # of each text what every round wrote
    same = sum(set(texts) == {one} for texts, one in zip(written, expected, strict=True))
    ideal = tau.value * plain.steps["total"] / steps["verify"] if steps and method.drafts else None
    return Metrics(
        method=method.name,
        label=method.label,
        batch_size=batch_size,
        temperature=temperature,
        tokens_per_second=sum(tokens for tokens, _ in found.batches) / sum(s for _, s in found.batches),
        speedup=gain.value,
        speedup_error=gain.error,
        tau=tau.value,
        tau_error=tau.error,
        ideal_speedup=ideal,
        ideal_share=None if ideal is None else gain.value / ideal,
        draft_share=None if steps is None else steps["draft"] / steps["total"],
        verify_share=None if steps is None else steps["verify"] / steps["total"],
        peak_memory_bytes=peak_memory,
        identical=same == len(expected) if method.comparable(temperature) else None,
        identical_texts=same,
        texts=len(expected),
        rounds_tokens_per_second=tuple(map(speed, found.rounds)),
        rounds_speedup=tuple(speedups(found.rounds, plain.rounds)),
        speedup_per_batch=gains,
        acceptance_per_depth=tuple(acceptance_of(runs).acceptance_per_depth),
        step_milliseconds=None if steps is None else {name: 1e3 * value for name, value in steps.items()},
        bandwidth_share=None if steps is None or limits is None else limits.read_seconds / steps["total"],
        arithmetic_share=_arithmetic_share(found, batch_size, limits),
    )


def _arithmetic_share(found: Measured, batch_size: int, limits: Limits | None) -> float | None:
    if found.steps is None or limits is None or found.method.nodes is None:
        return None
    return limits.product_seconds(batch_size * found.method.nodes) / found.steps["total"]
