"""Results as JSON lines, one per finished cell, each with all that it came from.

    {"key": …, "label": …, "seconds": …, "config": {…}, "result": {…}, "origin": {…}, …}

`result` is a `Trained` or a `Measurement` by its fields. A file can be read without the suite. Counts and times are
those of single prompts or batches, so that standard errors can be reckoned from them.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clover.measure.ranks import HeadAccuracy
from clover.measure.report.provenance import Provenance
from clover.metrics import Acceptance
from clover.validation import read_lines
from experiments.compare.plan import MethodKey, Plan
from experiments.compare.suite import Count, Positive

_MAX_BYTES = 2**30
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Args:
        parameters: that were trained.
        tokens, seconds: of the whole run; padding is not counted.
        loss: on held-out texts; of the last batches where none were held out.
        heads: how often they are right on what the target writes after the prompts of all tasks, if it was asked for.
        against: name of the system that the ablation table compares this one with.
        recorded: how a draft was trained before, as far as its record tells; None where the method says it.
    """

    method: MethodKey
    parameters: int
    tokens: int
    seconds: Seconds
    loss: float
    heads: HeadAccuracy | None
    against: str | None
    recorded: MethodKey | None = None

    @property
    def how(self) -> MethodKey:
        """Return the method, by loss, steps and rate that are known."""
        return self.recorded or self.method


@dataclass(frozen=True)
class Decoded:
    """What one method did in one measuring cell; plain decoding is one of them.

    Args:
        nodes: draft tokens verified per step at most; 0 for plain decoding.
        batches: of each batch of prompts the new tokens, and the median seconds of its rounds, prefill included.
        acceptances: of each prompt.
        step_milliseconds: of one decoding step of the whole batch, by phase, and "total".
        identical: so many texts are token by token those of plain decoding, in every round.
        exact: whether they have to be: all but at temperatures above 0 with trees that draw their children.
    """

    method: MethodKey
    nodes: int
    batches: tuple[tuple[Count, Positive], ...]
    acceptances: Annotated[tuple[Acceptance, ...], Field(min_length=1)]
    step_milliseconds: dict[str, float]
    identical: int
    exact: bool

    def __post_init__(self) -> None:
        if "accept" in self.step_milliseconds:  # older results call the phases run and verify otherwise
            names = {"verify": "run", "accept": "verify"}
            renamed = {names.get(name, name): value for name, value in self.step_milliseconds.items()}
            object.__setattr__(self, "step_milliseconds", renamed)
        if not {"draft", "run"} <= self.step_milliseconds.keys():
            raise ValueError("step_milliseconds must have draft and run")


@dataclass(frozen=True)
class Measurement:
    """What a measuring cell found; `methods` begins with plain decoding."""

    task: str
    batch_size: int
    temperature: float
    methods: tuple[Decoded, ...]

    def __post_init__(self) -> None:
        if len({len(one.batches) for one in self.methods}) != 1:
            raise ValueError("all methods must have as many batches")


@dataclass(frozen=True)
class Place:
    """What a cell ran on; older results do not tell the target's weights."""

    target: str
    device: str
    dtype: str
    weights: str | None = None


@dataclass(frozen=True)
class CellConfig:
    """What a report reads of a cell's configuration; a training without tasks has no prompts.

    Args:
        tasks: by name what stands for their prompts.
        prompts, max_new_tokens: that were asked for.
    """

    place: Place
    tasks: dict[str, str]
    prompts: int | None = None
    max_new_tokens: int | None = None

    @property
    def texts(self) -> Hashable:
        """Return what stands for the texts that heads are measured on."""
        return self.place, tuple(self.tasks.items()), self.prompts, self.max_new_tokens


@dataclass(frozen=True)
class Record:
    """One finished cell, `seconds` that this process worked on it, and the suite's own title and note."""

    key: str
    label: str
    seconds: Seconds
    config: dict[str, Any]
    result: Trained | Measurement
    title: str
    note: str
    origin: Provenance


def read_records(path: Path, mend: bool = False) -> list[Record]:
    """Return all records of a file, as `read_lines` reads them; of two with one key the later."""
    records = read_lines(path, Record, _MAX_BYTES, mend)
    return list({record.key: record for record in records}.values())


def as_planned(records: Sequence[Record], plan: Plan) -> list[Record]:
    """Return the records in the order in which a report of this plan has to read them, and with its suite's `against`.

    The plan's own come last: a row does not tell how many prompts or which weights it is from, and of two results for
    one row the later counts. `against` is no part of a key, as nothing that is measured depends on it.
    """
    asked = {cell.key for cell in plan.cells}
    against = {system.label: system.against for system in plan.suite.systems}
    found = []
    for record in sorted(records, key=lambda record: record.key in asked):
        result = record.result
        if isinstance(result, Trained) and result.method.system in against:
            result = replace(result, against=against[result.method.system])
        found.append(replace(record, result=result))
    return found
