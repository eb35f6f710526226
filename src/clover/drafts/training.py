"""How each draft system is trained where the user does not say otherwise, and how the authors of its paper train it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from clover.validation import checked

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@checked
class LossConfig:
    """Weights of the training loss (`clover.train.losses`); UserError if one is impossible, or the first three are 0.

    Args:
        distillation_weight: of the soft cross-entropy against the target's distribution.
        regression_weight: of the SmoothL1 between the draft's outputs and the target's hidden states.
        label_weight: of the cross-entropy against the token that stands in the text.
        decay: weight of each head relative to the one before.
        likely_tokens_only: leave out positions where a forced token is none that the target might have emitted
            (its top 8 within a nucleus of 0.8); they count in the mean, as zero.
        noise: half-width of uniform noise added to the hidden states the draft reads.
        relative: whether regression and noise are in units of the deviation of the target's post-norm states.
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
    """What `--recipe paper` sets of its authors' training, with AdamW and `TrainingDefaults.paper_loss`.

    Epochs, tokens of a step and length of the texts stay this project's (`TrainConfig`).

    Args:
        lr, betas, weight_decay: of AdamW; `lr` is the peak. 0.01 is its own default where a paper names no decay.
        warm_up: share of the run in which the rate rises to its peak, and stays there or falls (`schedule`). Where the
            authors name steps, these are divided by those of their own run: ours are shorter.
        clip_value: largest entry of the gradient; None for no clipping.
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
    """How a draft system is trained where the user does not say otherwise; measured in docs/development/log.md.

    Attributes:
        loss: the loss by which the system learns best.
        optimizer: the optimizer by which the system learns best.
        depth_curriculum: whether a training of some minutes starts with the first two depths alone.
        paper_loss: the loss of the system's paper, None where it is not known.
        paper_recipe: optimizer, rate, clipping and configuration of the paper, None where they are not known.
    """

    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: Literal["muon", "adamw"] = "muon"
    depth_curriculum: bool = False
    paper_loss: LossConfig | None = None
    paper_recipe: PaperRecipe | None = None

    def losses(self) -> dict[str, LossConfig]:
        """Return the losses by name: "default", "paper" where it is known, and "distillation", the same for all."""
        paper = {} if self.paper_loss is None else {"paper": self.paper_loss}
        return {"default": self.loss, **paper, "distillation": LossConfig()}
