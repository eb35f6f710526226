"""What an unfinished run leaves beside its output, and what a run needs to go on from there."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover.data import Position
from clover.errors import UserError
from clover.train.config import TrainConfig


@dataclass(frozen=True)
class RunState:
    """What a checkpoint holds beside tensors."""

    config: dict[str, Any]
    target: str
    dtype: str
    device: str
    data: str
    position: Position
    step: int
    tokens: int
    seconds: float
    scale: float
    entry: dict[str, Any]

    def check(
        self, path: Path, config: TrainConfig, target: str, dtype: str, device: str, texts: str
    ) -> None:
        """UserError if this was saved at `path` with other options, target (a hash), dtype, kind of device or texts."""
        config.check_resumable(self.config)
        if self.target != target:
            raise UserError(f"{path} was trained for another target; resume with the same one")
        if self.dtype != dtype:
            raise UserError(
                f"{path} was trained with the target in {self.dtype}, not {dtype}; resume with --dtype {self.dtype}"
            )
        if self.device != device:  # batches have another size there
            raise UserError(
                f"{path} was trained on {self.device}, not {device}; resume with --device {self.device}"
            )
        if self.data != texts:
            raise UserError(f"{path} was trained on other texts; resume with the same data")


def clear(config: TrainConfig) -> None:
    """Remove what an unfinished run left; other files in the directory stay, and it with them."""
    checkpoint_path(config).unlink(missing_ok=True)
    log_path(config).unlink(missing_ok=True)
    with suppress(OSError):
        config.work_directory.rmdir()


def check_unfinished(config: TrainConfig, resume: bool, overwrite: bool) -> None:
    """Raise UserError if there is nothing to resume, or if an unfinished run is neither resumed nor overwritten."""
    checkpoint = checkpoint_path(config)
    if resume and not checkpoint.exists():
        raise UserError(f"there is nothing to resume: {checkpoint} does not exist")
    if not resume and not overwrite and checkpoint.exists():
        raise UserError(
            f"{config.work_directory} holds an unfinished run; resume it, or overwrite it to start again"
        )


def checkpoint_path(config: TrainConfig) -> Path:
    """The file from which an unfinished run can go on; it is there once the run has saved."""
    return config.work_directory / "checkpoint.safetensors"


def log_path(config: TrainConfig) -> Path:
    """The log of an unfinished run."""
    return config.work_directory / "log.jsonl"
