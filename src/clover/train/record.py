"""Read the record of a training from the draft's directory: its options, results and log."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from clover.validation import read_model

RECORD_FILE, LOG_FILE = "training_config.json", "training_log.jsonl"


class LogEntry(BaseModel):
    """The measured loss, and the accuracy of each head."""

    loss: float
    accuracy: list[float] = []


class RecordedResult(BaseModel):
    """A finished training; `TrainResult` explains the fields."""

    steps: int = Field(ge=0)
    tokens: int = Field(ge=0)
    seconds: float = Field(ge=0)
    training: LogEntry
    validation: LogEntry | None

    @property
    def loss(self) -> float:
        """Return the loss on held-out texts, or on the last batches if no texts were held out."""
        return (self.validation or self.training).loss


class RecordedConfig(BaseModel):
    """The options that other commands read."""

    writing_seconds: float = Field(default=0.0, ge=0)  # the time that the target took to write the texts
    start_from: str | None = None  # the draft whose weights were the starting values
    lr: float | None = None
    loss: dict[str, Any] = {}  # fields of `LossConfig`


class TrainingRecord(BaseModel):
    """The record of a draft."""

    result: RecordedResult
    config: RecordedConfig = RecordedConfig()


def read_record(draft: str | Path) -> TrainingRecord:
    """Read the record in a draft's directory; UserError if it is missing or damaged."""
    return read_model(Path(draft, RECORD_FILE), TrainingRecord)
