"""Options of a training that are impossible."""

from typing import Any

import pytest

from clover.drafts import LossConfig
from clover.errors import UserError
from clover.train import TrainConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr is 0.0; it must be greater than 0"),
        ({"lr": 1e300}, "lr is 1e.300; it must be less than or equal to 100"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd'; it must be 'muon' or 'adamw'"),
        ({"max_steps": -1}, "max_steps is -1"),
        ({"max_minutes": float("nan")}, "max_minutes"),
        ({"schedule": "linear"}, "'trapezoid', 'cosine' or 'constant'"),
        ({"dtype": "int8"}, "'bfloat16' or 'float32'"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"warm_up": 1.0}, "less than 1"),
        ({"save_every_minutes": -1.0}, "greater than or equal to 0"),
        ({"weight_decay": float("inf")}, "weight_decay is inf; it must be a finite number"),
        ({"seed": 2**70}, "seed is 1180591620717411303424; it must be less than"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_impossible_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainConfig(output="x", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distillation_weight": -1.0}, "distillation_weight is -1.0; it must be greater than or equal to 0"),
        ({"label_weight": float("nan")}, "label_weight is nan; it must be a finite number"),
        ({"distillation_weight": 0.0}, "label_weight are 0; one must be greater than 0"),
        ({"decay": -0.1}, "decay is -0.1"),
        ({"noise": float("inf")}, "noise is inf; it must be a finite number"),
    ],
)
def test_an_impossible_loss_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LossConfig(**options)
