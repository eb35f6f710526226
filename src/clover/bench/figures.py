"""From the runs of one method to its figures: speed, where the time goes, and how near the ideal it comes.

A draft that costs nothing would make decoding τ · T_plain_step / T_verify_step times as fast; `ideal_share` is the
speed-up over that. The speed-up counts the prefill and the ideal does not; without it the share would be that of the
target's pass in a step, `verify_share`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from clover.bench.ceilings import Ceilings, StepWork
from clover.engine import STEP_PHASES
from clover.interleaved import Run, acceptance_of, speed, speedups, texts_of

_MILLISECONDS = 1e3


@dataclass(frozen=True)
class StepTimes:
    """Mean seconds of one decoding step of the whole batch, by phase.

    Args:
        other: of the step, what no phase accounts for.
    """

    draft: float
    verify: float
    accept: float
    keep: float
    other: float

    @property
    def total(self) -> float:
        """The whole step."""
        return self.draft + self.verify + self.accept + self.keep + self.other

    @property
    def draft_share(self) -> float:
        """Drafting, of the whole step."""
        return self.draft / self.total

    @property
    def verify_share(self) -> float:
        """The target's pass, of the whole step."""
        return self.verify / self.total

    def milliseconds(self) -> dict[str, float]:
        """All phases and the whole step, in milliseconds."""
        phases = {name: _MILLISECONDS * getattr(self, name) for name in (*STEP_PHASES, "other")}
        return phases | {"total": _MILLISECONDS * self.total}


@dataclass(frozen=True)
class Figures:
    """One line of the benchmark: a method at one batch size and temperature.

    Args:
        method: "plain", "auto", "own tree", a tree's specification, "transformers", "prompt lookup" or "assisted".
        tokens_per_second, speedup: medians of the rounds, prefill included; the speed-up is over our plain decoding.
        tau: tokens per decoding step and text, the bonus token included.
        ideal_speedup, ideal_share: see the head of this file; None without a draft of ours.
        draft_share, verify_share: drafting and the target's pass, of a decoding step; None where the steps are not
            ours. The latter is the ideal share without prefill.
        peak_memory_bytes: while decoding, weights included; None where it was not measured.
        identical: whether all texts are those of our plain decoding, in every round; None where they need not be.
        identical_texts, texts: of so many texts, how many are.
        rounds_tokens_per_second, rounds_speedup: of every round.
        acceptance_per_depth: share accepted at depth 1, 2, …
        step_milliseconds: by phase; None where the steps are not ours.
        bandwidth_share: the least time for reading the target's weights once, over the time of a step.
        arithmetic_share: the least time for the target's products of a step, over the time of the step.
    """

    method: str
    batch_size: int
    temperature: float
    tokens_per_second: float
    speedup: float
    tau: float
    ideal_share: float | None
    draft_share: float | None
    verify_share: float | None
    peak_memory_bytes: int | None
    identical: bool | None
    ideal_speedup: float | None
    identical_texts: int
    texts: int
    rounds_tokens_per_second: tuple[float, ...]
    rounds_speedup: tuple[float, ...]
    acceptance_per_depth: tuple[float, ...]
    step_milliseconds: dict[str, float] | None
    bandwidth_share: float | None
    arithmetic_share: float | None


@dataclass(frozen=True)
class Measured:
    """One method in one setting, as it was run.

    Args:
        rounds: per round the run of each batch.
        steps: mean times of a step; None where the steps are not ours.
        nodes: tokens that a step verifies per text, root included; None where that changes from step to step.
        drafts: whether a draft takes part.
        comparable: whether the texts have to be those of plain decoding.
    """

    method: str
    rounds: Sequence[Sequence[Run]]
    steps: StepTimes | None
    nodes: int | None
    drafts: bool
    comparable: bool


def step_times(runs: Sequence[Run]) -> StepTimes:
    """Where the time of a step goes, on average over all steps of `runs`.

    Raises:
        ZeroDivisionError: no step was taken.
    """
    steps = sum(run.clock.steps for run in runs)
    phases = {name: sum(run.clock.seconds[name] for run in runs) / steps for name in STEP_PHASES}
    decoding = sum(run.seconds - run.clock.seconds["prefill"] for run in runs) / steps
    return StepTimes(**phases, other=decoding - sum(phases.values()))


def ideal_speedup(tau: float, plain_step: float, verify_step: float) -> float:
    """The speed-up with a draft that costs nothing.

    >>> ideal_speedup(4.0, 0.010, 0.016)
    2.5
    """
    return tau * plain_step / verify_step


def figures(
    found: Measured,
    plain: Measured,
    batch_size: int,
    temperature: float,
    work: StepWork,
    ceilings: Ceilings,
    peak_memory: int | None,
) -> Figures:
    """Put together what was found about one method.

    Args:
        plain: our plain decoding in the same setting.
        peak_memory: bytes.
    """
    assert plain.steps is not None
    speeds = tuple(map(speed, found.rounds))
    gains = tuple(speedups(found.rounds, plain.rounds))
    acceptance = acceptance_of([run for part in found.rounds for run in part])
    expected = texts_of(plain.rounds[0])
    written = list(zip(*map(texts_of, found.rounds), strict=True))  # of each text what every round wrote
    same = sum(set(texts) == {one} for texts, one in zip(written, expected, strict=True))
    steps, ideal = found.steps, None
    if steps is not None and found.drafts:
        ideal = ideal_speedup(acceptance.tau, plain.steps.total, steps.verify)
    return Figures(
        method=found.method,
        batch_size=batch_size,
        temperature=temperature,
        tokens_per_second=median(speeds),
        speedup=median(gains),
        tau=acceptance.tau,
        ideal_share=None if ideal is None else median(gains) / ideal,
        draft_share=None if steps is None else steps.draft_share,
        verify_share=None if steps is None else steps.verify_share,
        peak_memory_bytes=peak_memory,
        identical=same == len(expected) if found.comparable else None,
        ideal_speedup=ideal,
        identical_texts=same,
        texts=len(expected),
        rounds_tokens_per_second=speeds,
        rounds_speedup=gains,
        acceptance_per_depth=tuple(acceptance.acceptance_per_depth),
        step_milliseconds=None if steps is None else steps.milliseconds(),
        bandwidth_share=None if steps is None else ceilings.read_seconds(work.weight_bytes) / steps.total,
        arithmetic_share=_arithmetic_share(found, batch_size, work, ceilings),
    )


def _arithmetic_share(found: Measured, batch_size: int, work: StepWork, ceilings: Ceilings) -> float | None:
    if found.steps is None or found.nodes is None:
        return None
    flops = work.flops_per_token * batch_size * found.nodes
    return ceilings.product_seconds(flops) / found.steps.total
