"""Methods that decode, and the metrics of their runs: speed, where the time goes, and how near the ideal it comes.

A draft that costs nothing would make decoding τ · T_plain_step / T_verify_step times as fast; `ideal_share` is the
speed-up divided by that. The speed-up counts the prefill and the ideal does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from clover.engine import STEP_PHASES, Engine, Request
from clover.integrations.generate import TransformersGenerate
from clover.measure.ceilings import Limits
from clover.measure.report.statistics import Estimate, ratio
from clover.measure.session import LOOKUP, OWN
from clover.measure.systems import system_name
from clover.measure.timing import Decode, Run, acceptance_of, decode, speedups, texts_of
from clover.metrics import Acceptance


@dataclass(frozen=True)
class Method:
    """A way to decode.

    Attributes:
        name, label: its name in results, and in reports.
        decode: decodes a batch.
        engine: the engine it runs on; None for transformers' own ways.
    """

    name: str
    label: str
    decode: Decode
    engine: Engine | None = None

    @classmethod
    def of_engine(cls, name: str, engine: Engine) -> Method:
        """Return a method that decodes on an engine."""
        label = {LOOKUP: "prompt lookup (ours)", OWN: "own tree"}.get(name) or system_name(name)
        return cls(name, label, partial(decode, engine), engine)

    @property
    def drafts(self) -> bool:
        """Return whether a trained draft of this library proposes tokens."""
        return self.engine is not None and self.engine.draft is not None

    @property
    def nodes(self) -> int | None:
        """Return the tokens that every step verifies per text, the root included; None where steps differ."""
        return self.engine.policy.max_nodes if self.engine and self.engine.tree.fixed_size else None

    def refusal(self, batch_size: int) -> str | None:
        """Return why it cannot decode batches of this size; None if it can."""
        if isinstance(self.decode, TransformersGenerate) and self.decode.one_row_only and batch_size > 1:
            return "not able: transformers runs it on one text at a time"
        return None

    def comparable(self, temperature: float) -> bool:
        """Return whether its texts must be those of plain decoding, token by token."""
        return temperature == 0 or (self.engine is not None and self.engine.tree.exact)


@dataclass(frozen=True)
class Metrics:
    """One line of a benchmark: a method at one batch size and temperature. docs/bench.md explains each number.

    Where steps are not ours, what is known of them is None; so are the errors of a single batch or prompt.
    """

    method: str
    label: str
    batch_size: int
    temperature: float
    tokens_per_second: float
    speedup: float
    speedup_error: float | None
    rounds_speedup: tuple[float, ...]
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
        rounds: per round the run of each batch.
        steps: mean seconds of a step, see `step_seconds`; None where steps are not ours.
        peak_memory: bytes, on a GPU.
        prompts: how many prompts are different, where `make_batches` filled a batch up with others' prompts.
    """

    method: Method
    rounds: Sequence[Sequence[Run]]
    steps: dict[str, float] | None = None
    peak_memory: int | None = None
    prompts: int | None = None

    @classmethod
    def of(cls, method: Method, rounds: Sequence[Sequence[Run]], requests: Sequence[Request]) -> Measured:
        """Join the runs with the times of a step; on a GPU those of one more run, which waits after each phase."""
        if method.engine is None:
            return cls(method, rounds)
        device = method.engine.target.device
        if device.type != "cuda":
            return cls(method, rounds, step_seconds([run for part in rounds for run in part]))
        torch.cuda.reset_peak_memory_stats(device)
        steps = step_seconds([decode(method.engine, requests, synchronize=True)])
        return cls(method, rounds, steps, torch.cuda.max_memory_allocated(device))

    @property
    def acceptance(self) -> Acceptance:
        """Return the acceptance of one round."""
        return acceptance_of(self.rounds[0])

    @property
    def batches(self) -> list[tuple[int, float]]:
        """Return the new tokens of each batch, and the median seconds of its rounds."""
        rounds = zip(*self.rounds, strict=True)
        return [(runs[0].tokens, median(run.seconds for run in runs)) for runs in rounds]

    @property
    def tau(self) -> Estimate:
        """Return the tokens per step, with its error over prompts, or over batches if no more is known."""
        parts = [part for run in self.rounds[0] for part in (run.acceptances or (run.acceptance,))]
        different = min(self.prompts or len(parts), len(parts))
        of_prompts = [sum(parts[at::different], Acceptance()) for at in range(different)]
        return ratio([(part.emitted, part.steps) for part in of_prompts])

    def speedup(self, plain: Measured) -> Estimate:
        """Return that of all batches together; where texts differ, plain decoding is scaled to as many tokens."""
        pairs = zip(self.batches, plain.batches, strict=True)
        return ratio([(base * tokens / count, seconds) for (tokens, seconds), (count, base) in pairs])

    def identical_texts(self, plain: Measured) -> int:
        """Return how many texts are plain decoding's in every round."""
        written = zip(*map(texts_of, self.rounds), strict=True)
        return sum(set(texts) == {one} for texts, one in zip(written, texts_of(plain.rounds[0]), strict=True))

    def metrics(
        self, plain: Measured, batch_size: int, temperature: float, limits: Limits | None = None
    ) -> Metrics:
        """Return the metrics; `plain` is our plain decoding in the same setting."""
        assert plain.steps is not None
        method, steps, tau, gain = self.method, self.steps, self.tau, self.speedup(plain)
        same, texts = self.identical_texts(plain), len(texts_of(plain.rounds[0]))
        ideal = tau.value * plain.steps["total"] / steps["verify"] if steps and method.drafts else None
        verified = batch_size * method.nodes if method.nodes else None
        return Metrics(
            method=method.name,
            label=method.label,
            batch_size=batch_size,
            temperature=temperature,
            tokens_per_second=sum(tokens for tokens, _ in self.batches) / sum(s for _, s in self.batches),
            speedup=gain.value,
            speedup_error=gain.error,
            rounds_speedup=tuple(speedups(self.rounds, plain.rounds)),
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


def step_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """Return the mean seconds of a decoding step by phase, with "other", which no phase measures, and "total"."""
    steps = sum(run.clock.steps for run in runs)
    phases = {name: sum(run.clock.seconds[name] for run in runs) / steps for name in STEP_PHASES}
    total = sum(run.seconds - run.clock.seconds["prefill"] for run in runs) / steps
    return phases | {"other": total - sum(phases.values()), "total": total}


def measure_runs(
    methods: Sequence[Method],
    runs: Mapping[str, Sequence[Sequence[Run]]],
    requests: Sequence[Request],
    limits: Limits | None = None,
    prompts: int | None = None,
) -> list[Metrics]:
    """Return the metrics of methods in one setting, plain decoding first.

    `runs` are by the methods' names, `requests` one of the batches; for `prompts` see `Measured`.
    """
    measured = [replace(Measured.of(one, runs[one.name], requests), prompts=prompts) for one in methods]
    size, temperature = len(requests), requests[0].params.temperature
    return [one.metrics(measured[0], size, temperature, limits) for one in measured]
