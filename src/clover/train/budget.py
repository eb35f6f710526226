"""Track how much of a run's budget is spent, and derive learning rate, depths and step size from it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from clover.data import Batches, TextBatch
from clover.drafts import DraftModel
from clover.train.config import TrainConfig

_FEW_DEPTHS = 2
_HELD_OUT_TOKENS, _HELD_OUT_SHARE = (2**11, 2**15), 1 / 16  # the limits, and the share of the tokens learnt
# the tokens of a step, divided by the square root of the tokens learnt; the second up to this share of the hidden size
_STEP_GROWTH, _FIRST_GROWTH, _WIDTH_SHARE = 0.5, 2.0, 0.75
_CPU_PASS_TOKENS, _GPU_PASS_TOKENS = (512, 1024), 4096  # the limits on a CPU; the number on other devices
_START = 1e-3  # the warm-up begins at this share, so that the rate of the first step is above 0


def pass_tokens(device: str, hidden_size: int) -> int:
    """Return how many tokens in a forward pass keep this kind of device busy; on a CPU more for wide targets."""
    least, most = _CPU_PASS_TOKENS
    return min(max(hidden_size, least), most) if device == "cpu" else _GPU_PASS_TOKENS


class TrainingBudget:
    """A counter of a run's steps, tokens and seconds, which compares them with the limits in the options.

    Args:
        config: steps, minutes and epochs.
        batches: the source of the texts.
        hidden_size: the target's.
        clock: a monotonic clock, in seconds.

    Attributes:
        step, tokens: optimizer steps and tokens (without padding) of the whole run, including resumed parts.
    """

    def __init__(
        self,
        config: TrainConfig,
        batches: Batches,
        hidden_size: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._config, self._batches, self._hidden_size, self._clock = config, batches, hidden_size, clock
        self.step = self.tokens = 0
        self._before, self._started = 0.0, clock()

    def start(self) -> None:
        """Count seconds from now on."""
        self._started = self._clock()

    def resume(self, step: int, tokens: int, seconds: float) -> None:
        """Continue from the counts of an interrupted run."""
        self.step, self.tokens, self._before = step, tokens, seconds

    def count(self, batches: Sequence[TextBatch]) -> None:
        """Count a step on these batches."""
        self.step += 1
        self.tokens += sum(int(batch.lengths.sum()) for batch in batches)

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole run, including interrupted parts."""
        return self._before + self._clock() - self._started

    @property
    def spent(self) -> float:
        """Return the share (0 to 1) of the budget that is spent: the larger of steps and time, or else of epochs."""
        config = self._config
        if config.only_fits:
            return 1.0
        shares = []
        if config.max_steps is not None:
            shares.append(self.step / config.max_steps)
        if config.max_minutes is not None:
            shares.append(self.seconds / (60 * config.max_minutes))
        return min(1.0, max(shares or [self._batches.epochs / config.epochs]))

    @property
    def is_spent(self) -> bool:
        """Return whether the run ends now. A run takes at least one step, unless the options set 0 steps."""
        return (self.step > 0 or self._config.only_fits) and self.spent >= 1

    @property
    def rate(self) -> float:
        """Return the factor on the peak learning rate."""
        config, share = self._config, self.spent
        warm_up = min(1.0, (share + _START) / config.warm_up) if config.warm_up else 1.0
        if config.schedule == "cosine":
            return min(warm_up, 0.5 + 0.5 * math.cos(math.pi * share))
        if config.schedule == "constant":
            return warm_up
        return min(warm_up, (1 - share) / config.decay if config.decay else 1.0)

    @property
    def step_tokens(self) -> float:
        """Return the minimum number of tokens in the next step.

        Beyond the critical batch size, a larger batch hardly reduces the noise of the gradient. This size grows with
        the square root of the tokens, for models of any size (2410.21676, §4). So short runs take many small steps. In
        wide models it grows faster at first: Muon gives all directions of a gradient the same length, and those that
        too few tokens reach are noise (docs/development/log.md, "How many at 1.5 B?").
        """
        root = math.sqrt(self.tokens)
        least = min(_FIRST_GROWTH * root, _WIDTH_SHARE * self._hidden_size)
        return self._config.step_tokens or max(least, _STEP_GROWTH * root)

    @property
    def held_out_tokens(self) -> int:
        """Return the number of held-out tokens to measure at the end: 1/16 of the tokens learnt, from 2,048 to 32,768.

        Without training, it is 32,768.
        """
        least, most = _HELD_OUT_TOKENS
        if self._config.only_fits:
            return most
        return min(max(least, round(_HELD_OUT_SHARE * self.tokens)), most)

    def depths(self, draft: DraftModel) -> int:
        """Return the number of depths that the next step trains.

        With fewer depths a step takes less time. This allows more steps only if the budget is in minutes.
        """
        config, every = self._config, draft.trained_depths
        few = (
            draft.training_defaults.depth_curriculum and config.max_minutes and self.spent < config.few_depths
        )
        return min(_FEW_DEPTHS, every) if few else every
