"""What a training run depends on."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clover.errors import UserError
from clover.losses import LossConfig

_SCHEDULES = ("trapezoid", "cosine", "constant")
DTYPES = ("bf16", "fp32")
OPTIMIZERS = ("muon", "adamw")
_MAY_CHANGE = (
    "output", "target", "data", "max_steps", "max_minutes", "epochs", "save_every_minutes", "writing_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """Options of a training run. The defaults follow the Clover-2 paper where it says something.

    Args:
        output: directory of the finished draft; `<output>.training` holds the log and the checkpoint meanwhile.
        target, data, system, draft: where the target and the texts came from, the draft system and its options, kept
            for the record.
        max_length: longest window of text in tokens; never more than the target's context.
        batch_tokens: tokens of one forward pass at most, padding counted, unless one text is longer; None for a size
            that keeps the device busy.
        step_tokens: tokens of an optimizer step at least, from as many forward passes as that takes; None lets it
            grow with what has been learnt (`schedule.step_tokens`).
        max_steps, max_minutes: the run ends at whichever comes first, and the learning rate is planned for it.
        epochs: passes over the data when neither of the two is given.
        optimizer: "muon" (for matrices; AdamW for the rest), or "adamw" for all, as in the paper.
        lr, betas, weight_decay: of the optimizers. lr is the peak.
        schedule: "trapezoid" (constant, then linear to zero over the last `decay` of the run), "cosine" or "constant".
        warm_up: share of the run in which the rate rises to its peak; `warm_up_steps` gives it in steps instead.
        clip: largest norm of the gradient, None for any; `clip_value` bounds each value of it instead.
        dtype: "bf16" (autocast; weights stay float32) or "fp32"; by default bf16 for a target in bfloat16.
        validation_share: share of the texts that is held out and only measured.
        save_every_minutes: time between checkpoints.
        writing_seconds: what the target took to write the texts before the training, kept for the record.
    """

    output: str
    target: str = ""
    data: tuple[str, ...] = ()
    system: str = "recall"
    draft: dict[str, Any] = field(default_factory=dict)
    max_length: int = 2048
    batch_tokens: int | None = None
    step_tokens: int | None = None
    max_steps: int | None = None
    max_minutes: float | None = None
    epochs: float = 4.0
    optimizer: str = "muon"
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    schedule: str = "trapezoid"
    warm_up: float = 0.02
    warm_up_steps: int | None = None
    decay: float = 0.3
    clip: float | None = 1.0
    clip_value: float | None = None
    dtype: str | None = None
    seed: int = 0
    validation_share: float = 0.02
    save_every_minutes: float = 5.0
    writing_seconds: float = 0.0
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        """Refuse impossible values with a UserError that names the option."""
        for name in ("max_length", "batch_tokens", "step_tokens", "max_steps", "warm_up_steps"):
            _check(name, value := getattr(self, name), value is None or value >= 1, "at least 1")
        for name in ("max_minutes", "epochs", "lr", "clip", "clip_value"):
            _check(
                name, value := getattr(self, name), value is None or 0 < value < float("inf"), "more than 0"
            )
        for name in ("warm_up", "decay", "validation_share"):
            _check(name, value := getattr(self, name), 0 <= value < 1, "at least 0 and less than 1")
        for name in ("weight_decay", "save_every_minutes"):
            _check(name, value := getattr(self, name), value >= 0, "at least 0")
        _check(
            "betas", self.betas, len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "two below 1"
        )
        _check("schedule", self.schedule, self.schedule in _SCHEDULES, " or ".join(_SCHEDULES))
        _check("optimizer", self.optimizer, self.optimizer in OPTIMIZERS, " or ".join(OPTIMIZERS))
        _check("dtype", self.dtype, self.dtype in (None, *DTYPES), " or ".join(DTYPES))

    @property
    def work_directory(self) -> Path:
        """Where the checkpoint and the log are until the draft is finished."""
        return Path(f"{self.output.rstrip('/')}.training")

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON holds them."""
        return json.loads(json.dumps(asdict(self)))

    def check_resumable(self, saved: dict[str, Any]) -> None:
        """Raise UserError if a run that was started with `saved` cannot go on with these options."""
        for name, value in self.to_dict().items():
            if name not in _MAY_CHANGE and saved.get(name) != value:
                raise UserError(
                    f"{self.work_directory} was started with {name} = {saved.get(name)!r}, not {value!r}; "
                    "resume with the same options"
                )


def _check(name: str, value: object, valid: bool, allowed: str) -> None:
    if not valid:
        raise UserError(f"{name} is {value!r}; it must be {allowed}")
