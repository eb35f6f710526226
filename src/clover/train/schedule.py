"""How much of the budget is spent, and the learning rate that goes with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clover.train.config import TrainConfig

_START = 1e-3  # share at which the warm-up is taken to begin, so that the first step is not wasted


@dataclass(frozen=True)
class Budget:
    """The bounds of a run: optimizer steps, or seconds of wall-clock time, or both."""

    max_steps: int | None
    max_seconds: float | None

    def spent(self, step: int, seconds: float) -> float:
        """Share of the budget that is used up after `step` steps and `seconds`: 0 … 1, the larger of the two."""
        by_steps = step / self.max_steps if self.max_steps else 0.0
        by_time = seconds / self.max_seconds if self.max_seconds else 0.0
        return min(1.0, max(by_steps, by_time))


def make_budget(config: TrainConfig, batches_per_epoch: int) -> Budget:
    """The bounds that `config` gives, or its number of epochs if it gives none."""
    if config.max_steps is None and config.max_minutes is None:
        return Budget(math.ceil(config.epochs * batches_per_epoch / config.accumulation), None)
    return Budget(config.max_steps, None if config.max_minutes is None else 60 * config.max_minutes)


def rate(share: float, config: TrainConfig) -> float:
    """Factor on the peak learning rate when `share` (0 … 1) of the budget is spent."""
    warm_up = min(1.0, (share + _START) / config.warm_up) if config.warm_up else 1.0
    if config.schedule == "cosine":
        return min(warm_up, 0.5 + 0.5 * math.cos(math.pi * share))
    return min(warm_up, (1 - share) / config.decay if config.decay else 1.0)
