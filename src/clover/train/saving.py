"""Save a run as a checkpoint, and decide whether a checkpoint may be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from clover.data import Position
from clover.drafts import DraftModel
from clover.errors import UserError
from clover.target import TargetWeights, weights_fingerprint
from clover.train.checkpoint import load_checkpoint, save_checkpoint
from clover.train.config import TrainConfig
from clover.validation import validated


@dataclass(frozen=True)
class RunState:
    """The part of a checkpoint that is not tensors: what the run depends on, and its progress.

    Args:
        config: the options.
        target: hash of the target's weights.
        dtype, device: the target's dtype and kind of device.
        data: fingerprint of the texts.
        position: the next batch.
        step, tokens, seconds: the counts of the run so far.
        scale: standard deviation of the target's hidden states.
        entry: the last line of the log.
    """

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


class Checkpoints:
    """The checkpoint file of one run.

    Args:
        config: the run's options.
        target, data: the frozen target, and the fingerprint of the texts.
        draft, optimizers: the owners of the saved tensors.
    """

    def __init__(
        self,
        config: TrainConfig,
        target: TargetWeights,
        data: str,
        draft: DraftModel,
        optimizers: Mapping[str, Optimizer],
    ):
        self.path = checkpoint_path(config)
        self._config, self._data = config, data
        self._target, self._dtype = weights_fingerprint(target), target.dtype_name
        self._device = target.device.type
        self._modules, self._optimizers = {"draft": draft}, optimizers

    def save(self, **place: Any) -> None:
        """Write all tensors, and `place`: `position` and the fields after it in `RunState`."""
        depends = (self._config.to_dict(), self._target, self._dtype, self._device, self._data)
        state = RunState(*depends, **place)
        save_checkpoint(self.path, self._modules, self._optimizers, asdict(state))

    def load(self) -> RunState:
        """Restore draft, optimizers and random numbers from the checkpoint; return the other state of the run.

        Raises:
            UserError: the file is damaged, or was written with other options, another target or other texts.
        """
        state = load_checkpoint(self.path, self._modules, self._optimizers)
        found = validated(RunState, state, str(self.path))
        self._config.check_resumable(found.config)
        if found.target != self._target:
            raise UserError(f"{self.path} was trained for another target; resume with the same one")
        for option, saved, here, what in (
            ("dtype", found.dtype, self._dtype, "with the target in"),
            ("device", found.device, self._device, "on"),  # because the size of batches depends on the device
        ):
            if saved != here:
                raise UserError(
                    f"{self.path} was trained {what} {saved}, not {here}; resume with --{option} {saved}"
                )
        if found.data != self._data:
            raise UserError(f"{self.path} was trained on other texts; resume with the same data")
        return found


def remove_unfinished(config: TrainConfig) -> None:
    """Remove the files of an unfinished run, and their directory unless it has other files."""
    checkpoint_path(config).unlink(missing_ok=True)
    log_path(config).unlink(missing_ok=True)
    with suppress(OSError):
        config.work_directory.rmdir()


def check_unfinished(config: TrainConfig, resume: bool, overwrite: bool) -> None:
    """Raise UserError if there is nothing to resume, or an unfinished run would be neither resumed nor overwritten."""
    checkpoint = checkpoint_path(config)
    if resume and not checkpoint.exists():
        raise UserError(f"there is nothing to resume: {checkpoint} does not exist")
    if not resume and not overwrite and checkpoint.exists():
        raise UserError(
            f"{config.work_directory} holds an unfinished run; resume it, or overwrite it to start again"
        )


def checkpoint_path(config: TrainConfig) -> Path:
    """Return the checkpoint file of an unfinished run; it exists once the run has saved."""
    return config.work_directory / "checkpoint.safetensors"


def log_path(config: TrainConfig) -> Path:
    """Return the log of an unfinished run."""
    return config.work_directory / "log.jsonl"
