"""Plain decoding and drafts in turn, on the same prompts, in the same engine and run (`clover.interleaved`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

from clover.compare.plan import Draft, Method
from clover.compare.results import Decoded
from clover.drafts import DraftModel
from clover.engine import STEP_PHASES, Engine, Request
from clover.errors import UserError
from clover.interleaved import Run, decode, interleave, texts_of
from clover.target import TargetModel
from clover.tree import parse_tree

_MILLISECONDS = 1e3


def make_engines(target: TargetModel, drafts: Sequence[tuple[Draft, DraftModel]]) -> dict[Method, Engine]:
    """Plain decoding, and every draft with each of its trees.

    Raises:
        UserError: a tree is unknown, or deeper than the draft goes; names the system.
    """
    engines = {Method(): Engine(target)}
    for draft, model in drafts:
        for method in draft.methods:
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
) -> tuple[Decoded, ...]:
    """Decode all batches with every method, `rounds` times.

    Args:
        engines: plain decoding first.
        batches: of equal temperature.
        rounds: how often all is decoded.
        progress: called with the share that is done, 0 … 1.
    """
    methods = {method: partial(decode, engine) for method, engine in engines.items()}
    runs = interleave(methods, batches, rounds, progress)
    expected = texts_of(runs[next(iter(engines))][0])
    return tuple(
        _summarize(method, engine, runs[method], batches, expected) for method, engine in engines.items()
    )


def _summarize(
    method: Method,
    engine: Engine,
    runs: Sequence[Sequence[Run]],
    batches: Sequence[Sequence[Request]],
    expected: Sequence[tuple[int, ...]],
) -> Decoded:
    clocks = [[run.clock for run in part] for part in runs]
    if engine.target.device.type == "cuda":  # a phase's time is known only where the device is waited for
        clocks = [[decode(engine, batches[0], synchronize=True).clock]]
    drawn = str(method.tree).startswith("drawn:") and batches[0][0].params.temperature > 0
    return Decoded(
        method=method,
        nodes=0 if engine.drafter is None else engine.drafter.max_nodes - 1,
        tokens=tuple(run.tokens for run in runs[0]),
        seconds=tuple(tuple(run.seconds for run in part) for part in runs),
        acceptances=tuple(one for run in runs[0] for one in run.acceptances),
        step_milliseconds={
            phase: _MILLISECONDS
            * median(sum(c.seconds[phase] for c in part) / sum(c.steps for c in part) for part in clocks)
            for phase in STEP_PHASES
        },
        identical=sum(own == other for own, other in zip(texts_of(runs[0]), expected, strict=True)),
        exact=not drawn,
    )
