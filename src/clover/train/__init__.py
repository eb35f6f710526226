"""Training of a draft on its frozen target."""

from clover.train.config import TrainConfig
from clover.train.loop import TrainResult, train

__all__ = ["TrainConfig", "TrainResult", "train"]
