"""Plain decoding and drafts in turn, on the same prompts, in the same engine and run.

In each round every method decodes every batch of prompts once; who is first changes from batch to batch, so that
whatever else the machine does slows all of them alike. A round's speed-up is that of the method over plain decoding in
the same round; the median of the rounds is the figure, the lowest and the highest round its spread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from statistics import median

import torch

from clover.compare.plan import PLAIN, Draft, Method
from clover.drafts import DraftModel
from clover.engine import Engine, PhaseClock, Request
from clover.errors import UserError
from clover.metrics import Acceptance
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import parse_tree

PHASES = ("draft", "verify", "accept", "keep")
_WARM_UP_TOKENS = 8
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


@dataclass(frozen=True)
class _Run:
    """One batch decoded once."""

    texts: tuple[tuple[int, ...], ...]
    seconds: float
    acceptance: Acceptance
    clock: PhaseClock

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))


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


def make_batches(
    prompts: Sequence[tuple[int, ...]],
    batch_size: int,
    temperature: float,
    max_new_tokens: int,
    context_length: int,
) -> list[list[Request]]:
    """All prompts in batches of equal size, the first prompts again where some are missing; request i has seed i."""
    count = -(-len(prompts) // batch_size) * batch_size
    requests = []
    for i in range(count):
        prompt = prompts[i % len(prompts)]
        room = context_length - len(prompt)
        params = SamplingParams(temperature=temperature, seed=i)
        requests.append(Request(prompt, min(max_new_tokens, room), params))
    return [requests[at : at + batch_size] for at in range(0, count, batch_size)]


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
    for engine in engines.values():
        _decode(engine, [_shortened(request) for request in batches[0]])
    runs: dict[Method, list[list[_Run]]] = {method: [[] for _ in range(rounds)] for method in engines}
    turns = [(number, batch) for number in range(rounds) for batch in batches]
    for turn, (number, batch) in enumerate(turns):
        for method in _order(list(engines), turn):
            runs[method][number].append(_decode(engines[method], batch))
        progress((turn + 1) / len(turns))
    return [_summarize(method, engines[method], runs, batches) for method in engines]


def _order(methods: list[Method], turn: int) -> list[Method]:
    """Each method is first in turn, and every other time the order runs backwards.

    >>> ["".join(_order(list("abc"), turn)) for turn in range(4)]
    ['abc', 'bac', 'cab', 'acb']
    """
    start = turn % len(methods)
    order = methods[start:] + methods[:start]
    return order if turn % 2 == 0 else [order[0], *order[:0:-1]]


def _decode(engine: Engine, batch: Sequence[Request], synchronize: bool = False) -> _Run:
    clock = PhaseClock(synchronize)
    texts: list[list[int]] = [[] for _ in batch]
    acceptance = Acceptance()
    _wait_for(engine.target.device)
    started = time.perf_counter()
    for event in engine.run(batch, clock):
        texts[event.index] += event.tokens
        if event.generation is not None:
            acceptance += event.generation.acceptance
    _wait_for(engine.target.device)
    seconds = time.perf_counter() - started
    return _Run(tuple(map(tuple, texts)), seconds, acceptance, clock)


def _shortened(request: Request) -> Request:
    return Request(request.prompt, min(request.max_new_tokens, _WARM_UP_TOKENS), request.params)


def _summarize(
    method: Method,
    engine: Engine,
    runs: Mapping[Method, Sequence[Sequence[_Run]]],
    batches: Sequence[Sequence[Request]],
) -> Measured:
    own, plain = runs[method], runs[Method(PLAIN)]
    first = [text for run in own[0] for text in run.texts]
    expected = [text for run in plain[0] for text in run.texts]
    acceptance = reduce(add, (run.acceptance for run in own[0]), Acceptance())
    speeds = [_speed(part) for part in own]
    drawn = str(method.tree).startswith("drawn:") and batches[0][0].params.temperature > 0
    clocks = [[run.clock for run in part] for part in own]
    if engine.target.device.type == "cuda":  # a phase's time is known only where the device is waited for
        clocks = [[_decode(engine, batches[0], synchronize=True).clock]]
    return Measured(
        method=method,
        nodes=0 if engine.drafter is None else engine.drafter.max_nodes - 1,
        tokens_per_second=tuple(speeds),
        speedups=tuple(speed / _speed(base) for speed, base in zip(speeds, plain, strict=True)),
        tau=acceptance.tau,
        acceptance_per_depth=tuple(acceptance.acceptance_per_depth),
        step_milliseconds={
            phase: _MILLISECONDS * median(_per_step(c, phase) for c in clocks) for phase in PHASES
        },
        identical=sum(a == b for a, b in zip(first, expected, strict=True)),
        texts=len(first),
        exact=not drawn,
    )


def _speed(runs: Sequence[_Run]) -> float:
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


def _per_step(clocks: Sequence[PhaseClock], phase: str) -> float:
    return sum(clock.seconds[phase] for clock in clocks) / sum(clock.steps for clock in clocks)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
