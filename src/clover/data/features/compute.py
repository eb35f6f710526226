"""Compute the frozen target's hidden states of a batch of training text.

Shapes: B texts, T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clover.errors import UserError

if TYPE_CHECKING:
    from clover.data import TextBatch
    from clover.target import TargetWeights

_NAMED = 12  # tokens that name a text in an error


@dataclass(frozen=True)
class Features:
    """The target's hidden states.

    `hidden_input` [B, T, W]: the draft's input, of the kind that it reads. `hidden_target` [B, T, H]: the reference for
    its outputs, always after the final norm.
    """

    hidden_input: Tensor
    hidden_target: Tensor


@torch.no_grad()
def compute_features(target: TargetWeights, tokens: Tensor, hidden_state: str) -> Features:
    """Run the target over right-padded texts.

    Args:
        tokens: Long [B, T] on the target's device. Padding is at the end, so no other token attends to it.
        hidden_state: the draft's `config.hidden_state`.
    """
    output = target.train_forward(tokens, hidden_state)
    return Features(hidden_input=output.draft_hidden_states, hidden_target=output.hidden)


def require_finite(features: Features, batch: TextBatch, target: TargetWeights) -> Features:
    """Return the features; UserError, which names the target and the text, if a hidden state is not finite.

    One such state would spoil the draft's weights. States on padding do not count.
    """
    for states in {id(part): part for part in (features.hidden_target, features.hidden_input)}.values():
        if bool(states.isfinite().all()):
            continue
        for tokens, length, row in zip(batch.tokens, batch.lengths.tolist(), states, strict=True):
            if not bool(row[:length].isfinite().all()):
                raise UserError(_not_finite(target, tokens[: min(length, _NAMED)].tolist()))
    return features


def _not_finite(target: TargetWeights, opening: list[int]) -> str:
    text = repr(target.tokenizer.decode(opening)) if target.tokenizer is not None else str(opening)
    advice = "its weights may be damaged" if target.dtype_name == "float32" else "--dtype float32 may help"
    return (
        f"the target {target.name} in {target.dtype_name} has hidden states that are not finite in the text that "
        f"begins {text}; {advice}, or leave the text out"
    )


@torch.no_grad()
def hidden_scale(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the standard deviation of the target's states after the final norm: the unit of the regression loss.

    It is the square root of the variance over positions, averaged over the H dimensions, without padding.

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
