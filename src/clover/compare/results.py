"""Results as JSON lines, one per finished cell, each with all that it came from.

    {"key": …, "kind": "training", "label": …, "seconds": …, "config": {…}, "result": {…}, "provenance": {…}}

`result` is a `Text`, `Trained`, `Measurement` or `Accuracy` by its fields. A file can be read without the suite.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clover.compare.accuracy import Accuracy
from clover.compare.fields import read_table
from clover.compare.measuring import Measurement
from clover.compare.training import Trained
from clover.errors import UserError
from clover.files import explain, write_text, written


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
class Provenance:
    """Where a result came from.

    Args:
        suite, suite_hash, title, note: the suite's name, a hash of all its values, and its own words.
        target, device, dtype, machine, threads: what was run, and on what.
        versions: of Clover, PyTorch, transformers and Python.
        revision: of Clover's source code; None without a checkout.
        command: the command line.
        date: ISO 8601, UTC, when the cell was finished.
    """

    suite: str
    suite_hash: str
    title: str
    note: str
    target: str
    device: str
    dtype: str
    machine: str
    threads: int
    versions: dict[str, str]
    revision: str | None
    command: str
    date: str


Result = Text | Trained | Measurement | Accuracy
_KINDS: dict[str, type[Result]] = {
    "text": Text,
    "training": Trained,
    "measuring": Measurement,
    "accuracy": Accuracy,
}


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
    result: Result
    provenance: Provenance


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


def read_records(path: Path) -> list[Record]:
    """All records of a file; of two with one key the later. Half a last line is left out.

    Raises:
        UserError: the file cannot be read, or a line is not a result; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {explain(error.errno or 0)}") from error
    except ValueError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from error
    whole = text[: text.rfind("\n") + 1]
    records = [
        _parse(line, f"{path}, line {number}") for number, line in enumerate(whole.split("\n"), 1) if line
    ]
    return list({record.key: record for record in records}.values())


def drop_half_line(path: Path) -> None:
    """Take off what an interrupted write has left at the end of the file, so that the next line starts anew."""
    if path.exists() and (text := path.read_text(encoding="utf-8")) and not text.endswith("\n"):
        write_text(path, text[: text.rfind("\n") + 1])


def _parse(line: str, where: str) -> Record:
    try:
        row = json.loads(line)
        kind = _KINDS[row["kind"]]
        row["result"] = read_table(kind, row["result"], f"{where}: result")
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{where} is not a result of clover compare") from error
    head = {name: value for name, value in row.items() if name not in ("result", "provenance")}
    provenance = read_table(Provenance, row.get("provenance"), f"{where}: provenance")
    known = read_table(_Head, head, where)
    return Record(**vars(known), result=row["result"], provenance=provenance)


@dataclass(frozen=True)
class _Head:
    """The plain fields of a record."""

    key: str
    kind: str
    label: str
    seconds: float
    config: dict[str, Any]
