"""Measurements of a draft by `clover tune` on one machine: saved with the draft as `tuning.json`, read at run time.

A file has one entry for each device, dtype and way of running the target's weights. Seconds are wall-clock seconds of
whole batches.
"""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import starmap
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from clover.drafting.tree import parse_tree
from clover.errors import UserError
from clover.files import write_json
from clover.measure.report.provenance import machine
from clover.target import TargetWeights
from clover.validation import read_json, validated

FILE_NAME = "tuning.json"
_FORMAT = "clover-tuning-3"
_LONGEST_TREE = 16_384  # characters: about two thousand nodes, more than any draft needs
_made_for = attrgetter("target", "device", "dtype", "weights", "exact")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a text of a tuning has characters that cannot be printed")
    return text


def _tunable(tree: str) -> str:
    # Only the user may name a file that is read.
    if len(tree) > _LONGEST_TREE or tree.endswith(".json") or not parse_tree(tree).tunable:
        raise ValueError(f"{tree[:60]!r} is not a tree that can be tuned")
    return tree


Text = Annotated[str, AfterValidator(_printable)]
TreeName = Annotated[str, AfterValidator(_tunable)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class VerifyCost:
    """Seconds of the target's pass (`Runner.run`) over `nodes` tokens per sequence, root included."""

    batch_size: Count
    nodes: Count
    seconds: Positive


@dataclass(frozen=True)
class Choice:
    """A tree, by its name, at one batch size: its τ, seconds of a step, and speed of the whole batch."""

    batch_size: Count
    tree: TreeName
    tau: Positive
    step_seconds: Positive
    tokens_per_second: Positive


_Entry = TypeVar("_Entry", VerifyCost, Choice)


@dataclass(frozen=True)
class Tuning:
    """One entry: all measurements on one device in one dtype, with place and time as in `Provenance`.

    `weights` and `exact` are those of the target (`clover.target.Target`); `target` is its `architecture_name`.
    `choices` has all measured trees, with the best one of each batch size first.
    """

    device: Text
    dtype: Text
    machine: Text
    threads: Count
    date: Text
    versions: dict[Text, Text] = field(hash=False)
    weights: Text | None
    exact: bool
    target: Text
    verify: tuple[VerifyCost, ...]
    choices: Annotated[tuple[Choice, ...], Field(min_length=1)]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Return the measured batch sizes in ascending order."""
        return tuple(sorted({choice.batch_size for choice in self.choices}))

    def choices_for(self, batch_size: int) -> tuple[Choice, ...]:
        """Return the choices of the measured batch size that is nearest by ratio; the best choice first."""
        return _of_nearest(self.choices, batch_size)


@dataclass(frozen=True)
class TuningFile:
    """The entries of a file, one for each way of running a target."""

    entries: tuple[Tuning, ...] = ()

    def find(self, target: TargetWeights, shipped: bool = False) -> Tuning | None:
        """Return the entry for a target of this architecture that ran in the same way; None without.

        Warns if all entries are for others, or if it was made on another machine and not shipped with the draft.
        """
        facts = target.device.type, target.dtype_name, target.weights, target.exact
        wanted = (architecture_name(target.config), *facts)
        found, problem = {_made_for(one): one for one in self.entries}, ""
        if (one := found.get(wanted)) is None:
            problem = f"tuned for {' and for '.join(starmap(_words, found))}, but not for {_words(*wanted)}"
        elif not shipped and one.machine != (here := machine(target.device)):
            problem = f"tuned on {one.machine}, and this is {here}: its times are only a first guess"
        if problem and found:
            warnings.warn(f"the draft was {problem}; measure anew with `clover tune`", stacklevel=3)
        return one


def _words(target: str, device: str, dtype: str, weights: str | None, exact: bool) -> str:
    return f"{target} on {device} in {dtype}, {weights or 'plain'} weights{', exact' if exact else ''}"


def architecture_name(config: Any) -> str:
    """Return the name of a target in entries, from a transformers configuration: type, layers, width, vocabulary.

    It contains only sizes, because they decide the cost of a step: a fine-tuned target can use the tuning of its
    origin. If weights matter, `clover.target.weights_fingerprint` is compared instead.
    """
    sizes = (getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    return "-".join(map(str, (getattr(config, "model_type", None), *sizes)))


def read_tuning(path: str | os.PathLike[str]) -> TuningFile:
    """Read a file that `write_entry` wrote; UserError if it is missing, or with the fault if it is invalid."""
    obj = read_json(path)
    if obj.get("format") != _FORMAT:
        raise UserError(
            f"{os.fspath(path)} has no tuning of format {_FORMAT!r}; remove it and measure anew with `clover tune`"
        )
    return validated(TuningFile, obj, os.fspath(path))


def write_entry(path: str | os.PathLike[str], tuning: Tuning) -> None:
    """Write an entry into a file; it replaces the entry for the same way of running. The file is never half-written.

    UserError if the file exists and is not a tuning, or cannot be written.
    """
    before = read_tuning(path).entries if Path(path).exists() else ()
    others = [one for one in before if _made_for(one) != _made_for(tuning)]
    write_json(path, {"format": _FORMAT, "entries": [asdict(one) for one in (*others, tuning)]})


def seconds_at(costs: Sequence[VerifyCost], batch_size: int, nodes: int) -> float:
    """Return the seconds over `nodes` tokens at the measured batch size that is nearest by ratio.

    The time is interpolated linearly between measured numbers of nodes, and constant beyond them.

    >>> costs = VerifyCost(1, 1, 1.0), VerifyCost(1, 3, 2.0), VerifyCost(8, 1, 7.0)
    >>> seconds_at(costs, 1, 2), seconds_at(costs, 2, 5), seconds_at(costs, 16, 2)
    (1.5, 2.0, 7.0)
    """
    known = sorted(_of_nearest(costs, batch_size), key=lambda cost: cost.nodes)
    return float(np.interp(nodes, [cost.nodes for cost in known], [cost.seconds for cost in known]))


def _of_nearest(measured: Sequence[_Entry], batch_size: int) -> tuple[_Entry, ...]:
    """Return the entries of the batch size that is nearest by ratio; the smaller of two equally near ones."""
    sizes = {one.batch_size for one in measured}
    nearest = min(sizes, key=lambda size: (abs(math.log(size / batch_size)), size), default=0)
    return tuple(one for one in measured if one.batch_size == nearest)
