"""What a training took, as the draft's directory records it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from clover.files import read_model

_RECORD = "training_config.json"


@dataclass(frozen=True)
class Result:
    """Steps, tokens and seconds of a training; padding is not counted."""

    steps: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Config:
    """Seconds before the training in which the target wrote the texts (`--regenerate`)."""

    writing_seconds: float = 0.0


@dataclass(frozen=True)
class Resources:
    """Peak bytes of the GPU, or of the process on a CPU; bytes of the checkpoint that lay on the disk meanwhile."""

    peak_memory_bytes: int | None = None
    checkpoint_bytes: int | None = None


@dataclass(frozen=True)
class TrainingRecord:
    """What `clover train` left with a draft."""

    result: Result
    config: Config = field(default_factory=Config)
    resources: Resources = field(default_factory=Resources)

    @property
    def seconds(self) -> float:
        """Writing the texts and training."""
        return self.config.writing_seconds + self.result.seconds


def read_record(folder: Path) -> TrainingRecord | None:
    """Read the record of a draft's training; None where there is none.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / _RECORD
    return read_model(path, TrainingRecord) if path.is_file() else None
