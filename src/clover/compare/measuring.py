"""Plain decoding and drafts in turn, on the same prompts, in the same engine and run (`clover.interleaved`)."""

from collections.abc import Callable, Mapping, Sequence

from clover.bench.methods import of_engine
from clover.bench.metrics import Measured
from clover.compare.plan import Draft, Method
from clover.compare.results import Decoded
from clover.drafts import DraftModel
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.interleaved import interleave
from clover.target import TargetModel
from clover.tree import parse_tree


def make_engines(target: TargetModel, drafts: Sequence[tuple[Draft, DraftModel]]) -> dict[Method, Engine]:
    """Plain decoding, and every draft with each of its trees.

    UserError if a tree is unknown, or deeper than the draft goes; names the system.
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
    """Decode all batches, of equal temperature, with every method, plain decoding first, `rounds` times.

    `progress` is called with the share that is done, 0 … 1.
    """
    ways = {method: of_engine(method.system, engine, method.tree) for method, engine in engines.items()}
    runs = interleave({method: way.decode for method, way in ways.items()}, batches, rounds, progress)
    found = {method: Measured.of(way, runs[method], batches[0]) for method, way in ways.items()}
    return tuple(
        Decoded(
            method=method,
            nodes=engines[method].policy.max_nodes - 1,
            batches=tuple(one.batches),
            acceptances=tuple(acceptance for run in one.rounds[0] for acceptance in run.acceptances),
            step_milliseconds={name: 1e3 * value for name, value in (one.steps or {}).items()},
            identical=one.identical_texts(found[Method()]),
            exact=one.method.comparable(batches[0][0].params.temperature),
        )
        for method, one in found.items()
    )
