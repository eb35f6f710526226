"""The settings of a draft system's training: its defaults, and the recipe of its paper's authors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from clover.validation import checked

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@checked
class LossConfig:
    """Weights of the training loss (`clover.train.losses`); UserError if one is invalid, or the first three are 0.

    Args:
        distillation_weight: of the soft cross-entropy against the target's distribution.
        regression_weight: of the SmoothL1 between the draft's outputs and the target's hidden states.
        label_weight: of the cross-entropy against the text's token.
        decay: weight of each head relative to the head before.
        likely_tokens_only: leave out positions with a forced token that the target itself would hardly emit: outside
            its top 8 or a nucleus of 0.8. They count as 0 in the mean.
        noise: half-width of the uniform noise that is added to the hidden states the draft reads.
        relative: whether regression and noise are in units of the standard deviation of the target's post-norm states.
    """

    distillation_weight: NotNegative = 1.0
    regression_weight: NotNegative = 0.0
    label_weight: NotNegative = 0.0
    decay: NotNegative = 0.7
    likely_tokens_only: bool = False
    noise: NotNegative = 0.0
    relative: bool = True

    def __post_init__(self) -> None:
        if not (self.distillation_weight or self.regression_weight or self.label_weight):
            raise ValueError(
                "distillation_weight, regression_weight and label_weight are 0; one must be greater than 0"
            )


@dataclass(frozen=True)
class PaperRecipe:
    """The settings of the authors that `--recipe paper` applies, with AdamW and `TrainingDefaults.paper_loss`.

    Epochs, tokens per step and the length of the texts keep their values from `TrainConfig`.

    Args:
        lr, betas, weight_decay: of AdamW; `lr` is the peak. AdamW's default decay, 0.01, is for papers without one.
        warm_up: share of the run in which the rate rises to its peak; then it stays or falls (`schedule`). If the
            authors state steps, the share is those steps divided by all steps of their run, because ours are shorter.
        clip_value: largest absolute value in the gradient; None for no clipping.
        options: fields of the configuration that differ from their defaults.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    schedule: Literal["cosine", "constant"] = "constant"
    warm_up: float = 0.0
    clip_value: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingDefaults:
    """The default training of a draft system; the measurements are in docs/development/log.md.

    Attributes:
        loss: the loss that works best for the system.
        optimizer: the optimizer that works best for the system.
        depth_curriculum: whether a training with a limit in minutes starts with only the first two depths.
        paper_loss: the loss of the system's paper; None if it is not known.
        paper_recipe: optimizer, rate, clipping and configuration of the paper; None if they are not known.
    """

    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: Literal["muon", "adamw"] = "muon"
    depth_curriculum: bool = False
    paper_loss: LossConfig | None = None
    paper_recipe: PaperRecipe | None = None

    def losses(self) -> dict[str, LossConfig]:
        """Return the losses by name: "default", "paper" if known, and "distillation", the same for all systems."""
        paper = {} if self.paper_loss is None else {"paper": self.paper_loss}
        return {"default": self.loss, **paper, "distillation": LossConfig()}
