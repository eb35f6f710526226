"""What `clover tune` measured of a draft on one machine: read at run time, saved with the draft as `tuning.json`.

A file has one entry per device, dtype and way in which the target runs its weights. Seconds are wall-clock seconds, all
of them of whole batches.
"""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from clover.drafting.tree import parse_tree
from clover.errors import UserError
from clover.files import write_json
from clover.target import TargetWeights
from clover.validation import read_json, validated

FILE_NAME = "tuning.json"
_FORMAT = "clover-tuning-3"
_LONGEST_TREE = 16_384  # characters: some two thousand nodes, more than a draft is made for


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a text of a tuning holds characters that cannot be printed")
    return text


def _tunable(tree: str) -> str:
    # Nobody but the user may name a file that is read.
    if len(tree) > _LONGEST_TREE or tree.endswith(".json") or not parse_tree(tree).tunable:
        raise ValueError(f"{tree[:60]!r} is no tree that can be tuned")
    return tree


Text = Annotated[str, AfterValidator(_printable)]
TreeName = Annotated[str, AfterValidator(_tunable)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class VerifyCost:
    """Seconds of the target's pass (`Runner.run`) over `nodes` tokens per sequence, root included; 1: a plain step."""

    batch_size: Count
    nodes: Count
    seconds: Positive


@dataclass(frozen=True)
class Choice:
    """One tree, by its name, at one batch size: its τ, seconds of a step, speed of the whole batch."""

    batch_size: Count
    tree: TreeName
    tau: Positive
    step_seconds: Positive
    tokens_per_second: Positive


_Entry = TypeVar("_Entry", VerifyCost, Choice)


@dataclass(frozen=True)
class Tuning:
    """One entry: everything that was measured on one device in one dtype, where and when as in `Provenance`.

    `weights` and `exact` are those of the target (`clover.target.Target`), `target` is its `architecture_name`; of the
    choices, all trees that were tried, the best is first within each size.
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
    def runs(self) -> tuple[Any, ...]:
        """Return how the target ran: its device, dtype and weights, and whether it was exact."""
        return self.device, self.dtype, self.weights, self.exact

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Return the batch sizes that were measured, rising."""
        return tuple(sorted({choice.batch_size for choice in self.choices}))

    def choices_for(self, batch_size: int) -> tuple[Choice, ...]:
        """Return the choices of the nearest batch size that was measured, by ratio; the best first."""
        return _of_nearest(self.choices, batch_size)


@dataclass(frozen=True)
class TuningFile:
    """The entries of a file, one for each way in which a target runs."""

    entries: tuple[Tuning, ...] = ()

    def find(self, target: TargetWeights) -> Tuning | None:
        """Return the entry that was measured with such a target, run as this one is; None without.

        A warning where one differs in the weights alone: its steps took another time.
        """
        name = architecture_name(target.config)
        wanted = target.device.type, target.dtype_name, target.weights, target.exact
        found = {one.runs: one for one in self.entries if one.target == name}
        if wanted not in found and wanted[:2] in [runs[:2] for runs in found]:
            warnings.warn(
                "the draft was tuned with other weights of the target (int8, --exact or neither), so its tuning is not "
                "used; measure anew with `clover tune`",
                stacklevel=3,
            )
        return found.get(wanted)


def architecture_name(config: Any) -> str:
    """Name the target that an entry belongs to, by a transformers configuration: type, layers, width, vocabulary.

    Sizes alone, because they decide what a step costs: a fine-tuned target may go on with the tuning of its origin.
    Where the weights matter, `clover.target.weights_fingerprint` is compared.
    """
    sizes = (getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    return "-".join(map(str, (getattr(config, "model_type", None), *sizes)))


def read_tuning(path: str | os.PathLike[str]) -> TuningFile:
    """Read a file that `write_entry` wrote; UserError if it is missing or is none such, with what is wrong in it."""
    obj = read_json(path)
    if obj.get("format") != _FORMAT:
        raise UserError(
            f"{os.fspath(path)} holds no tuning of format {_FORMAT!r}; remove it and measure anew with `clover tune`"
        )
    return validated(TuningFile, obj, os.fspath(path))


def write_entry(path: str | os.PathLike[str], tuning: Tuning) -> None:
    """Put an entry into a file in place of the one of a target that ran so; the file is whole at any time.

    UserError if the file exists and is no tuning, or cannot be written.
    """
    before = read_tuning(path).entries if Path(path).exists() else ()
    others = [one for one in before if one.runs != tuning.runs]
    write_json(path, {"format": _FORMAT, "entries": [asdict(one) for one in (*others, tuning)]})


def seconds_at(costs: Sequence[VerifyCost], batch_size: int, nodes: int) -> float:
    """Return the seconds over `nodes` tokens at the nearest batch size that was measured, by ratio.

    Between two numbers of nodes that were measured the time is a straight line; beyond them it is that of the nearest.

    >>> costs = VerifyCost(1, 1, 1.0), VerifyCost(1, 3, 2.0), VerifyCost(8, 1, 7.0)
    >>> seconds_at(costs, 1, 2), seconds_at(costs, 2, 5), seconds_at(costs, 16, 2)
    (1.5, 2.0, 7.0)
    """
    known = sorted(_of_nearest(costs, batch_size), key=lambda cost: cost.nodes)
    return float(np.interp(nodes, [cost.nodes for cost in known], [cost.seconds for cost in known]))


def _of_nearest(measured: Sequence[_Entry], batch_size: int) -> tuple[_Entry, ...]:
    """Return those of the nearest batch size by ratio; of two the smaller."""
    sizes = {one.batch_size for one in measured}
    nearest = min(sizes, key=lambda size: (abs(math.log(size / batch_size)), size), default=0)
    return tuple(one for one in measured if one.batch_size == nearest)
