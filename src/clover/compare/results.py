"""Results as JSON lines, one per finished cell, each with all that it came from.

    {"key": …, "kind": "training", "label": …, "seconds": …, "config": {…}, "result": {…}, "provenance": {…}}

`result` is a `Text`, `Trained`, `Measurement` or `Accuracy` by its fields. A file can be read without the suite.
Counts and times are those of single prompts or batches, so that standard errors can be reckoned from them.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from clover.compare.plan import Method
from clover.errors import UserError
from clover.evaluate.accuracy import HeadAccuracy
from clover.files import parse_json, read_text, validated, write_text, written
from clover.metrics import Acceptance
from clover.report.provenance import Provenance

_MAX_BYTES = 2**30


@dataclass(frozen=True)
class Text:
    """What the drafts learnt from.

    Args:
        tokens: of all texts, prompts included.
        learnt: of these, the ones that the drafts learn to predict.
        fingerprint: a hash of all of it.
    """

    texts: int
    tokens: int
    learnt: int
    fingerprint: str


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Args:
        parameters: that were trained.
        steps, tokens, seconds: of the whole run; padding is not counted.
        loss: on held-out texts; of the last batches where none were held out.
        against: name of the system that the ablation table compares this one with.
    """

    method: Method
    parameters: int
    steps: int
    tokens: int
    seconds: float
    loss: float
    against: str | None = None


@dataclass(frozen=True)
class Decoded:
    """What one method did in one measuring cell; plain decoding is one of them.

    Args:
        nodes: draft tokens verified per step at most; 0 for plain decoding.
        tokens: written in each batch of prompts.
        seconds: of each batch in each round, prefill and drafting included.
        acceptances: of each prompt.
        step_milliseconds: of one decoding step of the whole batch, by phase, the median of the rounds.
        identical: so many texts are token by token those of plain decoding.
        exact: whether they have to be: all but at temperatures above 0 with trees that draw their children.
    """

    method: Method
    nodes: int
    tokens: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    acceptances: tuple[Acceptance, ...]
    step_milliseconds: dict[str, float]
    identical: int
    exact: bool

    @property
    def batch_seconds(self) -> list[float]:
        """Seconds of each batch, the median of the rounds."""
        return [median(batch) for batch in zip(*self.seconds, strict=True)]


@dataclass(frozen=True)
class Measurement:
    """What a measuring cell found; `methods` begins with plain decoding."""

    task: str
    batch_size: int
    temperature: float
    methods: tuple[Decoded, ...]


@dataclass(frozen=True)
class Accuracy:
    """How often a draft's heads are right on what the target writes after the prompts of all tasks."""

    method: Method
    heads: HeadAccuracy


@dataclass(frozen=True)
class Origin:
    """Where a result came from: which suite, on which target, and all else.

    Args:
        suite, suite_hash, title, note: the suite's name, a hash of all its values, and its own words.
    """

    suite: str
    suite_hash: str
    title: str
    note: str
    target: str
    run: Provenance


Result = Text | Trained | Measurement | Accuracy
_KINDS: dict[str, Any] = {"text": Text, "training": Trained, "measuring": Measurement, "accuracy": Accuracy}


@dataclass(frozen=True)
class Record:
    """One finished cell.

    Args:
        key, kind, label, config: of the cell.
        seconds: that this process worked on it.
    """

    key: str
    kind: str
    label: str
    seconds: float
    config: dict[str, Any]
    result: Any
    provenance: Origin


def append_record(path: Path, record: Record) -> None:
    """Add a line to the file, and wait until it is on the disk.

    Raises:
        UserError: the file cannot be written.
    """
    line = json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":")) + "\n"
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def read_records(path: Path, mend: bool = False) -> list[Record]:
    """All records of a file; of two with one key the later. Half a last line, of an interrupted write, is left out.

    Args:
        mend: take such half a line off the file, so that the next one starts anew.

    Raises:
        UserError: the file cannot be read, or a line is not a result; names the line.
    """
    text = read_text(path, _MAX_BYTES)
    whole = text[: text.rfind("\n") + 1]
    if mend and whole != text:
        write_text(path, whole)
    records = [
        _parse(line, f"{path}, line {number}") for number, line in enumerate(whole.split("\n"), 1) if line
    ]
    return list({record.key: record for record in records}.values())


def _parse(line: str, where: str) -> Record:
    record = validated(Record, parse_json(line, where), where)
    if record.kind not in _KINDS:
        raise UserError(f"{where}: kind is {record.kind!r}; it must be one of {', '.join(_KINDS)}")
    result = validated(_KINDS[record.kind], record.result, f"{where}: result")
    return Record(**{**vars(record), "result": result})
