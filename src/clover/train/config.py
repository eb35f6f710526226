"""The options of a training run."""

import json
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from clover.drafts import LossConfig
from clover.drafts.training import NotNegative
from clover.errors import UserError
from clover.files import append_to_name
from clover.validation import checked

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A step moves a weight by about the rate. Above 100 nothing is learnt, and far above that float32 overflows.
Rate = Annotated[float, Field(gt=0, le=100)]
Share = Annotated[float, Field(ge=0, lt=1)]
_MAY_CHANGE = (
    "output", "target", "data", "max_steps", "max_minutes", "epochs", "save_every_minutes", "writing_seconds",
)  # fmt: skip


@checked
class TrainConfig:
    """The options of a training run; the defaults are those that worked best. UserError names an invalid option.

    Args:
        output: directory of the finished draft; until then log and checkpoint are in `<output>.training`.
        target, data, system, draft: the sources of the target and the texts, the draft system and its options; for the
            record only.
        start_from: a trained draft of the system, whose weights are the starting values; for the record only.
        max_length: longest window of text in tokens; never more than the target's context.
        batch_tokens: most tokens in a forward pass, padding included, unless a single text is longer; None for a size
            that keeps the device busy.
        step_tokens: fewest tokens in an optimizer step, from as many forward passes as needed; None for a number that
            grows with the tokens learnt (`TrainingBudget.step_tokens`).
        max_steps, max_minutes: the run ends when either is reached, and the learning rate is planned for that. With 0
            steps nothing is learnt: the draft `start_from` is fitted to the texts (`fit_to_held_out`).
        epochs: passes over the data if neither of the two is set.
        optimizer: "muon" (for matrices; AdamW for the rest), or "adamw" for all; None for the system's own
            (`TrainingDefaults.optimizer`).
        lr: peak learning rate, at most 100; None to derive it from the optimizer and the hidden size (`peak_rate`).
        betas, weight_decay: of the optimizers.
        schedule: "trapezoid" (constant, then linear to zero over the last `decay` of the run), "cosine" or "constant".
        warm_up: share of the run in which the rate rises to its peak.
        clip: largest norm of the gradient, None for no limit; `clip_value` limits each entry of the gradient instead.
        dtype: "bfloat16" (autocast; weights stay float32) or "float32"; bfloat16 by default if the target has it.
        few_depths: share of `max_minutes` in which a draft with a `depth_curriculum` learns only its first two depths.
        fit_vocabulary: whether a draft that proposes from a part of the vocabulary keeps, at the end, only the tokens
            that are worth their time (`drafts.vocabulary.worthwhile_size`).
        validation_share: share of the texts that is held out: measured, but not learnt.
        save_every_minutes: time between checkpoints.
        writing_seconds: time in which the target wrote the texts before the training; for the record only.
    """

    output: str
    target: str = ""
    data: tuple[str, ...] = ()
    system: str = "recall"
    draft: dict[str, Any] = field(default_factory=dict)
    start_from: str | None = None
    max_length: Count = 2048
    batch_tokens: Count | None = None
    step_tokens: Count | None = None
    max_steps: Annotated[int, Field(ge=0)] | None = None
    max_minutes: Positive | None = None
    epochs: Positive = 4.0
    optimizer: Literal["muon", "adamw"] | None = None
    lr: Rate | None = None
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: NotNegative = 0.0
    schedule: Literal["trapezoid", "cosine", "constant"] = "trapezoid"
    warm_up: Share = 0.02
    decay: Share = 0.3
    few_depths: Share = 0.6
    clip: Positive | None = 1.0
    clip_value: Positive | None = None
    dtype: Literal["bfloat16", "float32"] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    fit_vocabulary: bool = False
    validation_share: Share = 0.02
    save_every_minutes: NotNegative = 5.0
    writing_seconds: NotNegative = 0.0
    loss: LossConfig = field(default_factory=LossConfig)

    @property
    def work_directory(self) -> Path:
        """Return the directory that has the checkpoint and the log until the draft is finished."""
        return append_to_name(Path(self.output), ".training")

    @property
    def only_fits(self) -> bool:
        """Return True if nothing is learnt; then all texts may be used to measure."""
        return self.max_steps == 0

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON values."""
        return json.loads(json.dumps(asdict(self)))

    def check_resumable(self, saved: dict[str, Any]) -> None:
        """Raise UserError if these options cannot resume a run that was started with the options `saved`."""
        for name, value in self.to_dict().items():
            if name not in _MAY_CHANGE and saved.get(name) != value:
                raise UserError(
                    f"{self.work_directory} was started with {name} = {saved.get(name)!r}, not {value!r}; "
                    "resume with the same options"
                )
