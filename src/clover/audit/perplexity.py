"""Measure how far an exact target, with or without int8 weights, is from the plain model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from clover.measure.budget import Enough, never
from clover.target import TargetModel

_TOKENS = 2048  # the most tokens of one text, and of all texts


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of the running target and of the plain model, and the share of positions with equal best tokens."""

    running: float
    plain: float
    positions: int
    same_best: float

    def __str__(self) -> str:
        ratio = self.running / self.plain
        agreed = f"the same best token at {self.same_best:.1%} of {self.positions:,} positions"
        return f"perplexity {self.running:.3f}, {ratio:.4f} times that of the plain weights; {agreed}"


@torch.inference_mode()
def measure_perplexity(
    target: TargetModel, texts: Sequence[Sequence[int]], enough: Enough = never
) -> Perplexity | None:
    """Return the perplexity of an exact target on texts of at most 2,048 tokens; None if no text has two tokens.

    Every token of a text except the first is predicted, by `target.running` and by the plain model in the same dtype.
    Once `enough` returns True after a text, the others are left out.
    """
    losses, same, positions = [0.0, 0.0], 0, 0
    for text in texts:
        tokens = torch.tensor([text[: _TOKENS - positions]], device=target.device)
        if tokens.shape[1] < 2 or (positions and enough()):
            continue
        expected = tokens[0, 1:]
        found = [_logits(model, tokens) for model in (target.running, target.model)]
        losses = [
            sum_ + float(cross_entropy(logits, expected, reduction="sum"))
            for sum_, logits in zip(losses, found, strict=True)
        ]
        same += int((found[0].argmax(-1) == found[1].argmax(-1)).sum())
        positions += len(expected)
    if positions == 0:
        return None
    running, plain = (exp(loss / positions) for loss in losses)
    return Perplexity(running, plain, positions, same / positions)


def _logits(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """Return logits float32 [T - 1, V] for tokens Long [1, T]."""
    return model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
