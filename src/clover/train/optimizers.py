"""The optimizers of a draft, their learning rate, and gradient clipping. Muon is for matrices, AdamW for the rest.

Muon's updates are scaled to the size of AdamW's, so that one learning rate serves both.
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

_RATES = {"muon": 0.064, "adamw": 0.024}  # The peak rates times √H (docs/development/log.md).


def optimizer_name(config: TrainConfig, kind: type[DraftModel]) -> Literal["muon", "adamw"]:
    """Return the optimizer that is set, or the draft system's default."""
    return config.optimizer or kind.training_defaults.optimizer


def peak_rate(config: TrainConfig, kind: type[DraftModel], hidden_size: int) -> float:
    """Return the peak learning rate that is set, or one proportional to 1 / √H, with the target's hidden size H.

    A step of Muon changes an output of a matrix by rate · √H, relative to its input, because the update is an
    orthogonal matrix scaled to AdamW's size (`Muon`). So the change per step does not depend on H.
    """
    return config.lr or _RATES[optimizer_name(config, kind)] / math.sqrt(hidden_size)


def make_optimizers(draft: DraftModel, config: TrainConfig, lr: float) -> dict[str, Optimizer]:
    """Return optimizers by name; each trained parameter belongs to one of them.

    Muon does not train a draft's own lm_head, because each row of it belongs to one token.
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
    """Clip each entry of the gradients to `config.clip_value`, or else their norm to `config.clip`."""
    if config.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, config.clip_value)
    elif config.clip is not None:
        nn.utils.clip_grad_norm_(parameters, config.clip)


def set_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = lr
