"""What the frozen target says about a batch of training text, computed on the fly: nothing is stored on disk.

Shapes: B texts, T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clover.data.batching import Batch

if TYPE_CHECKING:
    from clover.target import TargetModel


@dataclass(frozen=True)
class Features:
    """The target's hidden states.

    `hidden_input` [B, T, W]: what the draft reads, of the kind it asks for. `hidden_target` [B, T, H]: what its outputs
    are compared with, always after the final norm.
    """

    hidden_input: Tensor
    hidden_target: Tensor


@torch.no_grad()
def compute_features(target: TargetModel, tokens: Tensor, hidden_state: str) -> Features:
    """Run the target over right-padded texts.

    Args:
        tokens: Long [B, T] on the target's device. Padding stands at the end, where nothing before it can see it.
        hidden_state: the draft's `config.hidden_state`.
    """
    output = target.train_forward(tokens, hidden_state)
    return Features(hidden_input=output.read, hidden_target=output.hidden)


@torch.no_grad()
def hidden_scale(target: TargetModel, batches: Iterable[Batch]) -> float:
    """Standard deviation of the target's hidden states after the final norm: the unit of the regression loss.

    The square root of the variance over positions, averaged over the H dimensions. Padding is left out.
    """
    count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for batch in batches:
        batch = batch.to(target.device)
        hidden = target.train_forward(batch.tokens).hidden
        real = torch.arange(hidden.shape[1], device=hidden.device) < batch.lengths[:, None]
        rows = hidden[real].cpu().double()
        count += len(rows)
        total = total + rows.sum(0)
        squares = squares + (rows**2).sum(0)
    variance = (squares / count - (total / count) ** 2).mean()
    return float(variance.clamp_min(1e-12).sqrt())
