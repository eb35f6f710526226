"""How much of the budget is spent, and the learning rate and the size of a step that go with it."""

import math
from typing import Literal

from clover.drafts import DraftModel
from clover.train.config import TrainConfig

_RATES = {
    "muon": 0.064,
    "adamw": 0.024,
}  # peak rates, times the root of the hidden size (docs/development/log.md)
_STEP_GROWTH = 0.5  # tokens of a step per root of the tokens learnt
_PASS_TOKENS, _GPU_PASS_TOKENS = {"cpu": 512}, 4096  # tokens of a forward pass, by kind of device
_START = 1e-3  # the warm-up begins at this share, so that the first step has a rate above 0


def step_tokens(config: TrainConfig, tokens: int) -> float:
    """Return the least tokens that the next optimizer step learns from, when `tokens` have been learnt.

    The batch size above which a gradient is hardly less noisy grows with the root of the tokens, whatever the size of
    the model (2410.21676, §4); so a short run takes many small steps, and a long one ends with large ones.
    """
    return config.step_tokens or _STEP_GROWTH * math.sqrt(tokens)


def pass_tokens(device: str) -> int:
    """Return the tokens of a forward pass that keep a kind of device busy."""
    return _PASS_TOKENS.get(device, _GPU_PASS_TOKENS)


def optimizer_name(config: TrainConfig, kind: type[DraftModel]) -> Literal["muon", "adamw"]:
    """Return the optimizer: the one that is set, or the draft system's default."""
    return config.optimizer or kind.training_defaults.optimizer


def peak_rate(config: TrainConfig, kind: type[DraftModel], hidden_size: int) -> float:
    """Return the peak learning rate: the one that is set, or one that falls with the root of the target's width.

    A step of Muon moves an output of a matrix by the rate times √width, relative to its input, because the update is
    an orthogonal matrix of AdamW's size (`Muon`); so the root keeps what one step changes.
    """
    return config.lr or _RATES[optimizer_name(config, kind)] / math.sqrt(hidden_size)


def spent(config: TrainConfig, step: int, seconds: float, epochs: float) -> float:
    """Return the share (0 … 1) of the budget that is spent: the larger of steps and time, or else that of epochs."""
    if config.only_fits:
        return 1.0
    shares = []
    if config.max_steps is not None:
        shares.append(step / config.max_steps)
    if config.max_minutes is not None:
        shares.append(seconds / (60 * config.max_minutes))
    return min(1.0, max(shares or [epochs / config.epochs]))


def rate(config: TrainConfig, share: float) -> float:
    """Return the factor on the peak learning rate when `share` (0 … 1) of the budget is spent."""
    warm_up = min(1.0, (share + _START) / config.warm_up) if config.warm_up else 1.0
    if config.schedule == "cosine":
        return min(warm_up, 0.5 + 0.5 * math.cos(math.pi * share))
    if config.schedule == "constant":
        return warm_up
    return min(warm_up, (1 - share) / config.decay if config.decay else 1.0)
