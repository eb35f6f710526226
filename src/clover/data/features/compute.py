"""What the frozen target says about a batch of training text.

Shapes: B texts, T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from clover.target import TargetWeights


@dataclass(frozen=True)
class Features:
    """The target's hidden states.

    `hidden_input` [B, T, W]: what the draft reads, of the kind it asks for. `hidden_target` [B, T, H]: what its outputs
    are compared with, always after the final norm.
    """

    hidden_input: Tensor
    hidden_target: Tensor


@torch.no_grad()
def compute_features(target: TargetWeights, tokens: Tensor, hidden_state: str) -> Features:
    """Run the target over right-padded texts.

    Args:
        tokens: Long [B, T] on the target's device. Padding stands at the end, where nothing before it can see it.
        hidden_state: the draft's `config.hidden_state`.
    """
    output = target.train_forward(tokens, hidden_state)
    return Features(hidden_input=output.draft_hidden_states, hidden_target=output.hidden)


@torch.no_grad()
def hidden_scale(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the standard deviation of the target's states after the final norm: the unit of the regression loss.

    The square root of the variance over positions, averaged over the H dimensions. Padding is left out.

    Args:
        parts: `Features.hidden_target` [B, T, H] and the lengths of the texts, Long [B], of each batch.
    """
    count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for hidden, lengths in parts:
        real = torch.arange(hidden.shape[1], device=hidden.device) < lengths.to(hidden.device)[:, None]
        rows = hidden[real].cpu().double()
        count += len(rows)
        total = total + rows.sum(0)
        squares = squares + (rows**2).sum(0)
    variance = (squares / count - (total / count) ** 2).mean()
    return float(variance.clamp_min(1e-12).sqrt())
