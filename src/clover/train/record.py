"""The record of a training, in the draft's folder: its options, results and log."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from clover.validation import read_model

RECORD_FILE, LOG_FILE = "training_config.json", "training_log.jsonl"


class LogEntry(BaseModel):
    """What was found of the heads: the loss, and the accuracy of each."""

    loss: float
    accuracy: list[float] = []


class RecordedResult(BaseModel):
    """A finished training; see `TrainResult`, whose fields these are."""

    steps: int = Field(ge=0)
    tokens: int = Field(ge=0)
    seconds: float = Field(ge=0)
    training: LogEntry
    validation: LogEntry | None

    @property
    def loss(self) -> float:
        """Return the loss on held-out texts; of the last batches where none were held out."""
        return (self.validation or self.training).loss


class RecordedConfig(BaseModel):
    """The options that are read later."""

    writing_seconds: float = Field(default=0.0, ge=0)  # The target wrote the texts before in this time.
    start_from: str | None = None  # The training started with the weights of this draft.
    lr: float | None = None
    loss: dict[str, Any] = {}  # These are fields of `LossConfig`.


class TrainingRecord(BaseModel):
    """The record of a draft."""

    result: RecordedResult
    config: RecordedConfig = RecordedConfig()


def read_record(draft: str | Path) -> TrainingRecord:
    """Read the record in a draft's directory; UserError, one line, if it is missing or damaged."""
    return read_model(Path(draft, RECORD_FILE), TrainingRecord)
