"""What a training took, as the draft's directory records it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clover.errors import UserError
from clover.files import read_json

_RECORD = "training_config.json"
T = TypeVar("T")


@dataclass(frozen=True)
class TrainingCost:
    """What a training took.

    Args:
        steps, tokens: of the training; padding is not counted.
        seconds: of the training alone.
        writing_seconds: before it, for the texts that the target wrote (`--regenerate`).
        peak_memory: bytes, of the GPU, or of the whole process on a CPU; None where it was not recorded.
        checkpoint: bytes of the checkpoint that lies on the disk meanwhile; None where it was not recorded.
        draft: bytes of the finished draft.
    """

    steps: int
    tokens: int
    seconds: float
    writing_seconds: float
    peak_memory: int | None
    checkpoint: int | None
    draft: int

    @property
    def all_seconds(self) -> float:
        """Writing the texts and training."""
        return self.writing_seconds + self.seconds


@dataclass(frozen=True)
class TrainedOn:
    """The files that a draft was trained on, and the share of their texts that was held out."""

    data: tuple[str, ...]
    validation_share: float


def read_cost(folder: Path) -> TrainingCost:
    """Read the record that `clover train` leaves with the draft.

    Raises:
        UserError: `folder` is not a draft that `clover train` wrote.
    """
    return _parsed(folder, _cost)


def read_data(folder: Path) -> TrainedOn:
    """Read which texts a draft was trained on, and which were held out.

    Raises:
        UserError: `folder` is not a draft that `clover train` wrote, or names no files.
    """
    found = _parsed(folder, _data)
    if not found.data:
        raise UserError(f"{folder} does not say which files it was trained on; name files with prompts")
    return found


def _parsed(folder: Path, parse: Callable[[dict[str, Any], Path], T]) -> T:
    if not (folder / _RECORD).is_file():
        raise UserError(
            f"{folder} does not say what its training took: it holds no {_RECORD}; give the output directory of "
            "`clover train`"
        )
    record = read_json(folder / _RECORD)
    try:
        return parse(record, folder)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / _RECORD} is not the record of a training: {error!r}") from error


def _data(record: dict[str, Any], _folder: Path) -> TrainedOn:
    config = record["config"]
    return TrainedOn(tuple(map(str, config["data"])), float(config["validation_share"]))


def _cost(record: dict[str, Any], folder: Path) -> TrainingCost:
    result, resources = record["result"], record.get("resources", {})
    return TrainingCost(
        steps=int(result["steps"]),
        tokens=int(result["tokens"]),
        seconds=float(result["seconds"]),
        writing_seconds=float(record["config"].get("writing_seconds", 0.0)),
        peak_memory=resources.get("peak_memory_bytes"),
        checkpoint=resources.get("checkpoint_bytes"),
        draft=sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
    )
