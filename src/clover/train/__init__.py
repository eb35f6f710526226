"""Training of a draft on its frozen target."""

from clover.train.config import TrainConfig
from clover.train.loop import TrainResult, check_unfinished, checkpoint_path, train

__all__ = ["TrainConfig", "TrainResult", "check_unfinished", "checkpoint_path", "train"]
