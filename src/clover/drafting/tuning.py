"""What `clover tune` measured of a draft on one machine: read at run time, saved with the draft as `tuning.json`.

A file holds one entry per device and dtype. Seconds are wall-clock seconds, all of them of whole batches.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from clover.drafting.calibration import Calibration
from clover.drafting.hazards import MOST_SPREAD
from clover.errors import UserError
from clover.files import read_json, write_json
from clover.tree import parse_tree

FILE_NAME = "tuning.json"
PLAIN = "none"  # the tree of plain decoding
_FORMAT = "clover-tuning-1"
_RULES = ("chain:", "budget:", "eagle2:", "paths:", "shared:")
_NAMES = ("clover2", "medusa")
_LONGEST_TREE = 4096  # characters: hundreds of nodes
T = TypeVar("T")


@dataclass(frozen=True)
class VerifyCost:
    """Seconds of one pass of the target over `nodes` tokens per row, root included: 1 is a plain step.

    Args:
        context: tokens that each row already has.
    """

    batch_size: int
    nodes: int
    context: int
    seconds: float


@dataclass(frozen=True)
class DraftCost:
    """Seconds that drafting `tree` takes per step, what the draft takes in before it included."""

    batch_size: int
    tree: str
    seconds: float


@dataclass(frozen=True)
class Choice:
    """One candidate, measured at one batch size.

    Args:
        tree: a specification for `clover.tree.parse_tree`, or "none" for plain decoding.
        tokens_per_second: of the whole batch, prefill left out.
        tau: tokens per step and row, the bonus token included.
        step_seconds: of a whole decoding step.
        mean_nodes: of a row's tree, root included; None where nobody counted them.
    """

    batch_size: int
    tree: str
    tokens_per_second: float
    tau: float
    step_seconds: float
    mean_nodes: float | None = None


@dataclass(frozen=True)
class TextDifficulty:
    """How hard text of a temperature is for the draft.

    Args:
        ratio: how often the target takes another token than the draft's (its hazard, see `AcceptanceEstimate`), over
            how often it does on the text that the choices were measured on: 1 for this one.
        spread: how much that varies within a text (`clover.drafting.hazards`); 0 in files of earlier versions.
    """

    temperature: float
    ratio: float
    spread: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """One entry: everything that was measured on one device in one dtype.

    Args:
        device: its type, such as "cpu" or "cuda".
        dtype: of target and draft, such as "float32".
        machine, threads, date, versions: where and when it was measured.
        target: `target_fingerprint` of the target.
        verify, draft: costs, in any order.
        choices: all candidates, the best first within each batch size.
        calibration: of the draft's probabilities; None when there was too little to fit it on.
        difficulties: of text at several temperatures, in any order; none in files of earlier versions.
    """

    device: str
    dtype: str
    machine: str
    threads: int
    date: str
    versions: dict[str, str] = field(hash=False)
    target: str
    verify: tuple[VerifyCost, ...]
    draft: tuple[DraftCost, ...]
    choices: tuple[Choice, ...]
    calibration: Calibration | None
    difficulties: tuple[TextDifficulty, ...] = ()

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those that were measured, rising."""
        return tuple(sorted({choice.batch_size for choice in self.choices}))

    def choices_for(self, batch_size: int) -> tuple[Choice, ...]:
        """The candidates of the nearest batch size that was measured, by ratio; the best first."""
        nearest = _nearest(self.batch_sizes, batch_size)
        return tuple(choice for choice in self.choices if choice.batch_size == nearest)


@dataclass(frozen=True)
class TuningFile:
    """The entries of a file, one per device and dtype."""

    entries: tuple[Tuning, ...] = ()

    def find(self, device: str, dtype: str, target: str) -> Tuning | None:
        """The entry of a device type and dtype that was measured with this target (`target_fingerprint`)."""
        for entry in self.entries:
            if (entry.device, entry.dtype, entry.target) == (device, dtype, target):
                return entry
        return None

    def with_entry(self, tuning: Tuning) -> TuningFile:
        """The file with an entry in place of the one of the same device and dtype."""
        others = [e for e in self.entries if (e.device, e.dtype) != (tuning.device, tuning.dtype)]
        return TuningFile((*others, tuning))


def target_fingerprint(config: Any) -> str:
    """Name the target that an entry belongs to, by a transformers configuration: type, layers, width, vocabulary."""
    sizes = (getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    return "-".join(map(str, (getattr(config, "model_type", None), *sizes)))


def verify_seconds(costs: Iterable[VerifyCost], batch_size: int, nodes: int, context: int) -> float:
    """Seconds of a pass over `nodes` tokens per row, between what was measured.

    Linear in the nodes and in the context between neighbours, and on the last two's line beyond them; the batch size
    is the nearest measured one, by ratio.

    >>> costs = [VerifyCost(1, 1, 64, 1.0), VerifyCost(1, 5, 64, 2.0), VerifyCost(1, 1, 128, 3.0)]
    >>> verify_seconds(costs, 1, 3, 64), verify_seconds(costs, 1, 1, 96)
    (1.5, 2.0)
    """
    costs = list(costs)
    assert costs, "something has to be measured first"
    nearest = _nearest({c.batch_size for c in costs}, batch_size)
    curves: dict[int, list[tuple[float, float]]] = {}
    for cost in costs:
        if cost.batch_size == nearest:
            curves.setdefault(cost.context, []).append((cost.nodes, cost.seconds))
    # A context at which few sizes were measured tells how the cost of those grew, not its whole curve.
    full = max(curves, key=lambda at: (len(curves[at]), -at))
    base = on_line(sorted(curves[full]), nodes)
    growth = []
    for at, points in sorted(curves.items()):
        nearby = min(points, key=lambda point: (abs(point[0] - nodes), point[0]))
        growth.append((float(at), nearby[1] / on_line(sorted(curves[full]), nearby[0])))
    return base * max(on_line(growth, context), 0.0)


def text_at(difficulties: Sequence[TextDifficulty], temperature: float) -> TextDifficulty:
    """How hard text is at a temperature, between those that were measured; the usual one where none was."""
    known = sorted(difficulties, key=lambda one: one.temperature)
    if not known:
        return TextDifficulty(temperature, 1.0)
    at = min(max(temperature, known[0].temperature), known[-1].temperature)
    ratio = on_line([(one.temperature, one.ratio) for one in known], at)
    return TextDifficulty(at, ratio, on_line([(one.temperature, one.spread) for one in known], at))


def _nearest(sizes: Iterable[int], batch_size: int) -> int:
    """The nearest size by ratio; the smaller of two."""
    return min(sizes, key=lambda size: (abs(math.log(size / batch_size)), size))


def on_line(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise linear through points with rising x; beyond the ends on the line of the last two, never falling there.

    >>> on_line([(1, 1.0), (3, 2.0), (4, 2.0)], 2), on_line([(1, 1.0), (3, 2.0)], 5)
    (1.5, 3.0)
    """
    if len(points) == 1:
        return points[0][1]
    right = min(max(bisect_right([at for at, _ in points], x), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    slope = (y1 - y0) / (x1 - x0)
    if not x0 <= x <= x1:
        slope = max(slope, 0.0)
        return y1 + slope * (x - x1) if x > x1 else max(y0 + slope * (x - x0), 0.0)
    return y0 + slope * (x - x0)


# -- the file ----------------------------------------------------------------------------------------------------------


def read_tuning(path: str | os.PathLike[str]) -> TuningFile:
    """Read a file that `write_entry` wrote.

    Raises:
        UserError: it is missing, or is not such a file; says what is wrong in it.
    """
    obj = read_json(path)
    try:
        if obj.get("format") != _FORMAT:
            raise ValueError(f"its format is {str(obj.get('format'))[:40]!r}, not {_FORMAT!r}")
        return TuningFile(tuple(_entry(entry) for entry in _sequence(obj["entries"], "entries")))
    except (ValueError, KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise UserError(
            f"{os.fspath(path)} holds no tuning: {what}; write it anew with `clover tune`"
        ) from error


def write_entry(path: str | os.PathLike[str], tuning: Tuning) -> None:
    """Put an entry into a file in place of the one of the same device and dtype; the file is whole at any time.

    Raises:
        UserError: the file exists and is no tuning, or cannot be written.
    """
    before = read_tuning(path) if Path(path).exists() else TuningFile()
    entries = [_to_json(entry) for entry in before.with_entry(tuning).entries]
    write_json(path, {"format": _FORMAT, "entries": entries})


def _to_json(tuning: Tuning) -> dict[str, Any]:
    values = {name.name: getattr(tuning, name.name) for name in fields(tuning)}
    for name in ("verify", "draft", "choices", "difficulties"):
        values[name] = [asdict(one) for one in values[name]]
    values["calibration"] = None if tuning.calibration is None else tuning.calibration.to_json()
    return values


def _entry(values: Any) -> Tuning:
    values = _mapping(values, "an entry")
    found = Tuning(
        **{name: _text(values[name], name) for name in ("device", "dtype", "machine", "date", "target")},
        threads=_count(values["threads"], "threads"),
        versions={
            _text(key, "versions"): _text(value, "versions")
            for key, value in _mapping(values["versions"], "versions").items()
        },
        verify=_all(values["verify"], "verify", _verify_cost),
        draft=_all(values["draft"], "draft", _draft_cost),
        choices=_all(values["choices"], "choices", _choice),
        calibration=None if values["calibration"] is None else Calibration.from_json(values["calibration"]),
        difficulties=_all(values.get("difficulties", []), "difficulties", _difficulty),
    )
    if len({one.temperature for one in found.difficulties}) < len(found.difficulties):
        raise ValueError("difficulties has a temperature twice")
    if not found.choices:
        raise ValueError("an entry has no choices")
    return found


def _verify_cost(values: dict[str, Any]) -> VerifyCost:
    counts = {name: _count(values[name], name) for name in ("batch_size", "nodes", "context")}
    return VerifyCost(**counts, seconds=_positive(values["seconds"], "seconds"))


def _draft_cost(values: dict[str, Any]) -> DraftCost:
    size, tree = _count(values["batch_size"], "batch_size"), _tree(values["tree"])
    return DraftCost(size, tree, _positive(values["seconds"], "seconds"))


def _choice(values: dict[str, Any]) -> Choice:
    numbers = {name: _positive(values[name], name) for name in ("tokens_per_second", "tau", "step_seconds")}
    nodes = values.get("mean_nodes")
    return Choice(
        batch_size=_count(values["batch_size"], "batch_size"),
        tree=_tree(values["tree"]),
        mean_nodes=None if nodes is None else _positive(nodes, "mean_nodes"),
        **numbers,
    )


def _difficulty(values: dict[str, Any]) -> TextDifficulty:
    greedy = values["temperature"] == 0
    temperature = 0.0 if greedy else _positive(values["temperature"], "temperature")
    spread = values.get("spread", 0.0)
    spread = 0.0 if spread == 0 else _positive(spread, "spread")
    if spread > MOST_SPREAD:
        raise ValueError(f"spread must be at most {MOST_SPREAD:g}, not {spread:g}")
    return TextDifficulty(temperature, _positive(values["ratio"], "ratio"), spread)


def _all(values: Any, name: str, parse: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    return tuple(parse(_mapping(value, name)) for value in _sequence(values, name))


def _tree(value: Any) -> str:
    text = _text(value, "tree")
    if len(text) > _LONGEST_TREE:
        raise ValueError(f"a tree is {len(text)} characters long")
    # parse_tree takes any other word as the name of a file, which nothing but the user may name.
    if text not in (PLAIN, *_NAMES) and not text.startswith(_RULES):
        raise ValueError(f"{text[:60]!r} is no tree that can be tuned")
    if text != PLAIN:
        parse_tree(text)
    return text


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, not a {type(value).__name__}")
    return value


def _sequence(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, not a {type(value).__name__}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"{name} must be a printable text")
    return value


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{name} must be a whole number from 1, not {str(value)[:40]}")
    return value


def _positive(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a number above 0, not {str(value)[:40]}")
    return float(value)
