"""Plain decoding and drafts in turn, on the same prompts, in the same engine and run (`clover.interleaved`).

A round's speed-up is that of the method over plain decoding in the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from clover.compare.plan import PLAIN, Draft, Method
from clover.drafts import DraftModel
from clover.engine import STEP_PHASES, Engine, PhaseClock, Request
from clover.errors import UserError
from clover.interleaved import Run, acceptance_of, decode, interleave, speed, texts_of
from clover.target import TargetModel
from clover.tree import parse_tree

_MILLISECONDS = 1e3


@dataclass(frozen=True)
class Measured:
    """What one method did in one measuring cell.

    Args:
        nodes: draft tokens verified per step at most; 0 for plain decoding.
        tokens_per_second: of each round, over all prompts, prefill and drafting included.
        speedups: tokens per second over plain decoding's, of each round.
        tau: tokens per decoding step and text, the bonus token included.
        acceptance_per_depth: share accepted at depth 1, 2, …; empty without a draft.
        step_milliseconds: of one decoding step of the whole batch, by phase, the median of the rounds.
        identical: of so many texts, how many are token by token those of plain decoding.
        texts: in one round.
        exact: whether they have to be identical: all but at temperatures above 0 with trees that draw (rule B).
    """

    method: Method
    nodes: int
    tokens_per_second: tuple[float, ...]
    speedups: tuple[float, ...]
    tau: float
    acceptance_per_depth: tuple[float, ...]
    step_milliseconds: dict[str, float]
    identical: int
    texts: int
    exact: bool

    @property
    def speedup(self) -> float:
        """The median of the rounds."""
        return median(self.speedups)

    @property
    def speed(self) -> float:
        """Tokens per second, the median of the rounds."""
        return median(self.tokens_per_second)


@dataclass(frozen=True)
class Measurement:
    """What a measuring cell found.

    Args:
        prompts: different ones; those that fill up the last batch are not counted.
        methods: plain decoding first.
    """

    task: str
    batch_size: int
    temperature: float
    prompts: int
    methods: tuple[Measured, ...]


def make_engines(target: TargetModel, drafts: Sequence[tuple[Draft, DraftModel]]) -> dict[Method, Engine]:
    """Plain decoding, and every draft with each of its trees.

    Raises:
        UserError: a tree is unknown, or deeper than the draft goes; names the system.
    """
    engines = {Method(PLAIN): Engine(target)}
    for draft, model in drafts:
        for method in draft.methods():
            try:
                engines[method] = Engine(target, model, parse_tree(str(method.tree)))
            except UserError as error:
                raise UserError(f"system {method.system!r}: {error}") from error
    return engines


def measure(
    engines: Mapping[Method, Engine],
    batches: Sequence[Sequence[Request]],
    rounds: int,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Measured]:
    """Decode all batches with every method, `rounds` times.

    Args:
        engines: plain decoding first.
        batches: of equal temperature.
        rounds: how often all is decoded.
        progress: called with the share that is done, 0 … 1.
    """
    assert next(iter(engines)).system == PLAIN
    runs = interleave(
        {method: partial(decode, engine) for method, engine in engines.items()}, batches, rounds, progress
    )
    return [_summarize(method, engines[method], runs, batches) for method in engines]


def _summarize(
    method: Method,
    engine: Engine,
    runs: Mapping[Method, Sequence[Sequence[Run]]],
    batches: Sequence[Sequence[Request]],
) -> Measured:
    own, plain = runs[method], runs[Method(PLAIN)]
    first, expected = texts_of(own[0]), texts_of(plain[0])
    acceptance = acceptance_of(own[0])
    speeds = [speed(part) for part in own]
    drawn = str(method.tree).startswith("drawn:") and batches[0][0].params.temperature > 0
    clocks = [[run.clock for run in part] for part in own]
    if engine.target.device.type == "cuda":  # a phase's time is known only where the device is waited for
        clocks = [[decode(engine, batches[0], synchronize=True).clock]]
    return Measured(
        method=method,
        nodes=0 if engine.drafter is None else engine.drafter.max_nodes - 1,
        tokens_per_second=tuple(speeds),
        speedups=tuple(own / speed(base) for own, base in zip(speeds, plain, strict=True)),
        tau=acceptance.tau,
        acceptance_per_depth=tuple(acceptance.acceptance_per_depth),
        step_milliseconds={
            phase: _MILLISECONDS * median(_per_step(c, phase) for c in clocks) for phase in STEP_PHASES
        },
        identical=sum(a == b for a, b in zip(first, expected, strict=True)),
        texts=len(first),
        exact=not drawn,
    )


def _per_step(clocks: Sequence[PhaseClock], phase: str) -> float:
    return sum(clock.seconds[phase] for clock in clocks) / sum(clock.steps for clock in clocks)
