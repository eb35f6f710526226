"""The optimizers of a draft (Muon for the matrices inside it, AdamW for all else), their rate, and the clipping.

Updates of Muon are scaled to the size of AdamW's, so that one learning rate serves both.
"""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from clover.cpu.muon import Muon
from clover.drafts import DraftModel
from clover.train.config import TrainConfig

_RATES = {"muon": 0.064, "adamw": 0.024}  # The peak rates, times √H (docs/development/log.md).


def optimizer_name(config: TrainConfig, kind: type[DraftModel]) -> Literal["muon", "adamw"]:
    """Return the optimizer: the one that is set, or the draft system's default."""
    return config.optimizer or kind.training_defaults.optimizer


def peak_rate(config: TrainConfig, kind: type[DraftModel], hidden_size: int) -> float:
    """Return the peak learning rate: the one that is set, or one that falls with the root of the target's width.

    A step of Muon moves an output of a matrix by the rate times √width, relative to its input, because the update is
    an orthogonal matrix of AdamW's size (`Muon`); so the root keeps what one step changes.
    """
    return config.lr or _RATES[optimizer_name(config, kind)] / math.sqrt(hidden_size)


def make_optimizers(draft: DraftModel, config: TrainConfig, lr: float) -> dict[str, Optimizer]:
    """Return optimizers by name; each parameter that is trained belongs to one of them.

    The lm_head of a draft does not count as such a matrix: each row stands for one token.
    """
    trained = [p for p in draft.parameters() if p.requires_grad]
    heads, muon = {id(p) for p in draft.head_parameters}, optimizer_name(config, type(draft)) == "muon"
    matrices = [p for p in trained if p.ndim == 2 and id(p) not in heads and muon]
    inside = set(map(id, matrices))
    others = [p for p in trained if id(p) not in inside]
    found: dict[str, Optimizer] = {}
    if matrices:
        found["muon"] = Muon(matrices, lr, weight_decay=config.weight_decay)
    if others:
        found["adamw"] = torch.optim.AdamW(
            others,
            lr=lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=others[0].device.type in ("cpu", "cuda"),
        )
    return found


def clip_gradients(parameters: Iterable[nn.Parameter], config: TrainConfig) -> None:
    """Bound each value of the gradients by `config.clip_value`, or else their norm by `config.clip`."""
    if config.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, config.clip_value)
    elif config.clip is not None:
        nn.utils.clip_grad_norm_(parameters, config.clip)


def set_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = lr
