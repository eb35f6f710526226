"""The metrics of a method's runs: speed, time per phase, share of the ideal speed-up, and differences of texts.

A draft that costs nothing would make decoding τ · T_plain_step / T_verify_step times as fast; `ideal_share` is the
speed-up divided by that ideal. The speed-up includes the prefill, but the ideal does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import inf
from statistics import median
from typing import NamedTuple

import torch

from clover.engine import STEP_PHASES, Request
from clover.measure.ceilings import Limits
from clover.measure.methods import Method
from clover.measure.report.statistics import Estimate, ratio
from clover.measure.timing import Run, time_decoding
from clover.metrics import Acceptance
from clover.target import TargetModel

Rounds = Sequence[Sequence[Run]]  # of one method: the rounds of each batch
_TIE = 1e-3  # logits closer than this may swap their order when more tokens run together


@dataclass(frozen=True)
class Metrics:
    """One line of a benchmark: a method at one batch size and temperature. docs/bench.md explains each number.

    The numbers of steps are None if the steps are not ours. Errors are None for a single batch or prompt.
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
    peak_memory_bytes: int | None
    identical: bool | None
    identical_texts: int
    texts: int
    acceptance_per_depth: tuple[float, ...]
    step_milliseconds: dict[str, float] | None
    bandwidth_share: float | None
    arithmetic_share: float | None


@dataclass(frozen=True)
class Measured:
    """The runs of one method in one setting.

    Attributes:
        batches: the rounds of each batch.
        prompts: how many prompts are different, because `make_batches` fills up the last batch with the first prompts.
        steps: mean seconds of a step, see `step_seconds`; None if steps are not ours, or were not measured.
        peak_memory: bytes, on a GPU.
    """

    method: Method
    batches: Rounds
    prompts: int | None = None
    steps: dict[str, float] | None = None
    peak_memory: int | None = None

    def with_steps(self, requests: Sequence[Request]) -> Measured:
        """Add the times of a step; on a GPU they are from an extra run, which synchronizes after each phase."""
        if self.method.engine is None:
            return self
        device = self.method.engine.target.device
        if device.type != "cuda":
            return replace(self, steps=step_seconds(chain(*self.batches)))
        torch.cuda.reset_peak_memory_stats(device)
        steps = step_seconds([time_decoding(self.method.engine, requests, synchronize=True)])
        return replace(self, steps=steps, peak_memory=torch.cuda.max_memory_allocated(device))

    @property
    def first_round(self) -> list[Run]:
        """Return one run of each batch."""
        return [rounds[0] for rounds in self.batches]

    @property
    def acceptance(self) -> Acceptance:
        """Return the acceptance of one round."""
        return sum((run.acceptance for run in self.first_round), Acceptance())

    @property
    def tau(self) -> Estimate:
        """Return the tokens per step, with the error over prompts, or over batches if prompts are not known."""
        parts = [part for run in self.first_round for part in (run.acceptances or (run.acceptance,))]
        different = min(self.prompts or len(parts), len(parts))
        of_prompts = [sum(parts[at::different], Acceptance()) for at in range(different)]
        return ratio([(part.emitted, part.steps) for part in of_prompts])

    @property
    def medians(self) -> list[tuple[int, float]]:
        """Return, for each batch, its new tokens and the median seconds of its rounds."""
        return [(rounds[0].tokens, median(run.seconds for run in rounds)) for rounds in self.batches]

    @property
    def speed(self) -> float:
        """Return the new tokens per second of all batches."""
        return sum(tokens for tokens, _ in self.medians) / sum(seconds for _, seconds in self.medians)

    @property
    def texts(self) -> list[tuple[tuple[int, ...], ...]]:
        """Return, for each text of all batches, the tokens that each round wrote."""
        return [text for rounds in self.batches for text in zip(*(run.texts for run in rounds), strict=True)]

    def speedup(self, plain: Measured) -> Estimate:
        """Return the speed-up over all batches; if texts differ, plain decoding is scaled to as many tokens."""
        pairs = zip(self.medians, plain.medians, strict=True)
        return ratio([(base * tokens / count, seconds) for (tokens, seconds), (count, base) in pairs])

    def identical_texts(self, plain: Measured) -> int:
        """Return how many texts equal plain decoding's in every round."""
        return sum(set(texts) == {first} for texts, (first, *_) in zip(self.texts, plain.texts, strict=True))

    def metrics(
        self, plain: Measured, batch_size: int, temperature: float, limits: Limits | None = None
    ) -> Metrics:
        """Return the metrics; `plain` is our plain decoding in the same setting."""
        assert plain.steps is not None
        method, steps, tau, gain = self.method, self.steps, self.tau, self.speedup(plain)
        same, texts = self.identical_texts(plain), len(plain.texts)
        ideal = tau.value * plain.steps["total"] / steps["run"] if steps and method.drafts else None
        verified = batch_size * method.nodes if method.nodes else None
        return Metrics(
            method=method.name,
            label=method.label,
            batch_size=batch_size,
            temperature=temperature,
            tokens_per_second=self.speed,
            speedup=gain.value,
            speedup_error=gain.error,
            tau=tau.value,
            tau_error=tau.error,
            ideal_speedup=ideal,
            ideal_share=None if ideal is None else gain.value / ideal,
            peak_memory_bytes=self.peak_memory,
            identical=same == texts if method.comparable(temperature) else None,
            identical_texts=same,
            texts=texts,
            acceptance_per_depth=tuple(self.acceptance.acceptance_per_depth),
            step_milliseconds=steps and {name: 1e3 * value for name, value in steps.items()},
            bandwidth_share=limits.read_seconds / steps["total"] if limits and steps else None,
            arithmetic_share=(
                limits.product_seconds(verified) / steps["total"] if limits and steps and verified else None
            ),
        )


def step_seconds(runs: Iterable[Run]) -> dict[str, float]:
    """Return the mean seconds of a decoding step by phase, with "other" for the rest of its time, and "total"."""
    runs = list(runs)
    steps = sum(run.clock.steps for run in runs)
    phases = {name: sum(run.clock.seconds[name] for run in runs) / steps for name in STEP_PHASES}
    total = sum(run.seconds - run.clock.seconds["prefill"] for run in runs) / steps
    return phases | {"other": total - sum(phases.values()), "total": total}


class TextDifference(NamedTuple):
    """The description of a text that differs from plain decoding's; `defect` if rounding does not explain it."""

    words: str
    defect: bool


def find_differences(
    target: TargetModel, requests: Sequence[Request], measured: Sequence[Measured]
) -> Iterator[TextDifference]:
    """Yield texts that differ from plain decoding's: all of them in an exact dtype, else the first of each method.

    `requests` are those of all batches, and the first of `measured` is plain decoding. Rounding never explains a
    difference of an exact target.
    """
    exact = target.exact or target.dtype in (torch.float32, torch.float64)
    for one in measured:
        differing = (
            (row, plain, text)
            for row, ((plain, *_), texts) in enumerate(zip(measured[0].texts, one.texts, strict=True))
            for text in dict.fromkeys(texts)
            if text != plain
        )
        for row, plain, text in differing if exact else islice(differing, 1):
            both = min(len(plain), len(text))
            at = next((at for at in range(both) if plain[at] != text[at]), both)
            gap, what = inf, "one text ends"
            if at < both:
                gap = _gap(target, (*requests[row].prompt, *plain[:at]), plain[at], text[at])
                what = f"the two tokens' logits are {gap:.2g} apart"
            defect = target.exact or (exact and gap > _TIE)
            why = "a defect, rounding does not explain it" if defect else "rounding can do that"
            where = f"prompt {row % (one.prompts or len(requests)) + 1}, at new token {at + 1}"
            yield TextDifference(f"{one.method.name}, {where}: {what}; {why}", defect)


@torch.inference_mode()
def _gap(target: TargetModel, text: Sequence[int], first: int, second: int) -> float:
    """Return the difference of two logits when the target reads the text before them in a single pass."""
    read = torch.tensor([list(text)], device=target.device)
    logits = target.logits(target.train_forward(read).hidden[0, -1]).double()
    return abs(float(logits[first] - logits[second]))
