"""Training of a draft on its frozen target."""

from clover.train.config import TrainConfig
from clover.train.recipes import configure, draft_fields, named_recipe, prepare
from clover.train.saving import check_unfinished, checkpoint_path
from clover.train.trainer import TrainResult, train

__all__ = [
    "TrainConfig",
    "TrainResult",
    "check_unfinished",
    "checkpoint_path",
    "configure",
    "draft_fields",
    "named_recipe",
    "prepare",
    "train",
]
