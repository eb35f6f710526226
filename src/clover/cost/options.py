"""What the user of `clover cost` chooses, checked before any time is spent on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clover.cost.breakeven import Prices
from clover.cost.measuring import MeasuringOptions
from clover.drafts.loading import trainable_system
from clover.errors import UserError
from clover.files import check_output_file
from clover.provenance import command_line
from clover.train import TrainConfig


@dataclass(frozen=True)
class CostOptions:
    """A draft whose training is over, or a training that is planned.

    Target, dtype and device are those of `clover.load`.

    Args:
        prompts: files with prompts, see `clover.data.tasks`; openings of held-out training texts when left out.
        draft: directory that `clover train` wrote; leave out to get a forecast.
        data: texts of the planned training.
        minutes, max_steps: length of the planned training; one of them.
        regenerate_minutes: time that the target will write texts before it.
        probe_minutes: time of the two trainings of the probe together.
        price, serving_price: money per hour of the machine that trains, and of the one that decodes.
        batch_size, temperature, max_new_tokens, batches, tree: how the pair is used, see `MeasuringOptions`.
        system, max_length, batch_tokens, lr, seed: of the training, see `TrainConfig`.
        json: file for the figures, if wanted.
    """

    prompts: tuple[str, ...] = ()
    target: str | None = None
    draft: str | None = None
    data: tuple[str, ...] = ()
    minutes: float | None = None
    max_steps: int | None = None
    regenerate_minutes: float = 0.0
    probe_minutes: float = 3.0
    price: float | None = None
    serving_price: float | None = None
    batch_size: int = 1
    temperature: float = 0.0
    max_new_tokens: int = 64
    batches: int = 16
    tree: str | None = None
    system: str = "recall"
    max_length: int = 2048
    batch_tokens: int = 8192
    lr: float = 1e-3
    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False
    json: Path | None = None

    @property
    def command(self) -> str:
        """The command line that chooses the same.

        >>> CostOptions(draft="d", price=2.5, data=()).command
        'clover cost --draft d --price 2.5'
        """
        return command_line("cost", self, files="prompts")

    @property
    def prices(self) -> Prices:
        """The two prices."""
        return Prices(self.price, self.serving_price)

    @property
    def measuring(self) -> MeasuringOptions:
        """How the pair is used."""
        return MeasuringOptions(
            self.batch_size, self.temperature, self.max_new_tokens, self.batches, self.tree
        )

    def training(self) -> TrainConfig:
        """The planned training; its output is not used."""
        return TrainConfig(
            output="",
            data=self.data,
            system=self.system,
            max_length=self.max_length,
            batch_tokens=self.batch_tokens,
            max_steps=self.max_steps,
            max_minutes=self.minutes,
            lr=self.lr,
            seed=self.seed,
            loss=trainable_system(self.system).default_loss,
        )

    def check(self) -> None:
        """Raise a UserError, before any time is spent, for what does not go together."""
        if (self.draft is None) == (not self.data):
            raise UserError(
                "give either --draft DIR for what its training took, or --data FILE and --minutes M for a forecast"
            )
        if self.data and (self.minutes is None) == (self.max_steps is None):
            raise UserError("a forecast needs the length of the training: --minutes M or --max-steps N")
        if self.draft and (self.minutes or self.max_steps):
            raise UserError(f"{self.draft} is trained already; --minutes and --max-steps are for a forecast")
        if not self.probe_minutes > 0:
            raise UserError(f"probe_minutes is {self.probe_minutes:g}; it must be more than 0")
        _ = self.prices, self.training()
        if self.json is not None:
            check_output_file(self.json)
