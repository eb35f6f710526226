"""Plain decoding and drafts in turn, on the same prompts, in the same engine and run (`clover.interleaved`)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

from clover.compare.plan import Draft, Method
from clover.compare.results import Decoded
from clover.drafts import DraftModel
from clover.engine import STEP_PHASES, Engine, PhaseClock, Request
from clover.errors import UserError
from clover.interleaved import decode, interleave, texts_of
from clover.target import TargetModel
from clover.tree import parse_tree


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
    progress: Callable[[float], None],
) -> tuple[Decoded, ...]:
    """Decode all batches with every method, `rounds` times.

    Args:
        engines: plain decoding first.
        batches: of equal temperature.
        progress: called with the share that is done, 0 … 1.
    """
    methods = {method: partial(decode, engine) for method, engine in engines.items()}
    runs = interleave(methods, batches, rounds, progress)
    plain = texts_of(runs[Method()][0])
    sampled = batches[0][0].params.temperature > 0
    found = []
    for method, engine in engines.items():
        first = runs[method][0]
        clocks = [[run.clock for run in part] for part in runs[method]]
        if engine.target.device.type == "cuda":  # a phase's time is known only where the device is waited for
            clocks = [[decode(engine, batches[0], synchronize=True).clock]]
        one = Decoded(
            method=method,
            nodes=0 if engine.drafter is None else engine.drafter.max_nodes - 1,
            tokens=tuple(run.tokens for run in first),
            seconds=tuple(tuple(run.seconds for run in part) for part in runs[method]),
            acceptances=tuple(one for run in first for one in run.acceptances),
            step_milliseconds=_step_milliseconds(clocks),
            identical=sum(own == other for own, other in zip(texts_of(first), plain, strict=True)),
            exact=not (sampled and str(method.tree).startswith("drawn:")),
        )
        found.append(one)
    return tuple(found)


def _step_milliseconds(rounds: Sequence[Sequence[PhaseClock]]) -> dict[str, float]:
    """Of each phase, the median of the rounds."""
    steps = [sum(clock.steps for clock in clocks) for clocks in rounds]
    return {
        phase: 1e3
        * median(sum(c.seconds[phase] for c in clocks) / n for clocks, n in zip(rounds, steps, strict=True))
        for phase in STEP_PHASES
    }
