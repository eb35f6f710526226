"""Temperature, top-k, top-p and min-p, equal to those of transformers.

Shapes: B batch, N tree nodes, V vocabulary, W tokens that are considered.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from clover.sampling.params import SamplingParams

# A filter considers this many of the most probable tokens first, and eight times more while that is not enough.
_FIRST_WIDTH = 64


class Warpers:
    """Temperature, top-k, top-p and min-p of a batch: tensors [B, 1, 1], None for a filter that no sequence needs."""

    def __init__(self, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        # The draws of a greedy sequence are not used, so its parameters must not cause work.
        rows = [SamplingParams(temperature=1.0) if row.greedy else row for row in params]
        top_k = [row.top_k if row.top_k < vocab_size else 0 for row in rows]
        filtered = [bool(k) or row.top_p < 1 or row.min_p > 0 for k, row in zip(top_k, rows, strict=True)]
        self._unfiltered = ~torch.tensor(filtered, dtype=torch.bool, device=device).view(-1, 1, 1)
        self._any_filtered = any(filtered)
        self._all_filtered = all(own or row.greedy for own, row in zip(filtered, params, strict=True))
        self._first_width = max([_FIRST_WIDTH, *(k + 1 for k in top_k)])
        self._temperature = column([row.temperature for row in rows], 1.0, device)
        self._top_k = column(top_k, 0, device)
        self._top_p = column([row.top_p for row in rows], 1.0, device)
        self._min_p = column([row.min_p for row in rows], 0.0, device)

    def warp(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Divide scores [B, N, V] by the temperature, and drop tokens.

        Returns scores [B, N, W], -inf for dropped tokens, and the tokens [B, N, W] of the scores; None if W = V.
        """
        if self._temperature is not None:
            scores = scores / self._temperature.to(scores.dtype)
        if not self._any_filtered:
            return scores, None
        probs = scores.softmax(-1)
        values, tokens, floor = self._filter(probs)
        if not self._all_filtered:
            return scores.masked_fill(probs < floor, -torch.inf), None
        tokens, order = tokens.sort(-1)
        dropped = (values < floor).gather(-1, order)
        return scores.gather(-1, tokens).masked_fill(dropped, -torch.inf), tokens

    def _filter(self, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Find the probability below which each node's tokens are dropped: the highest threshold of the filters.

        Returns the highest probabilities and their tokens, both [B, N, W], which include all kept tokens; and the
        lowest kept probability [B, N, 1], 0 for sequences without a filter.
        """
        width = min(self._first_width, self._vocab_size)
        while True:
            values, tokens = probs.topk(width)
            kth = self._kth_probability(values)
            floor = self._floor(values, kth)
            # All tokens equal to the k-th are needed, because top-p takes a share of the tokens that top-k keeps.
            last, needed = values[..., -1:], torch.where(kth > 0, kth, floor)
            if width == self._vocab_size or bool(((last < needed) | (last == 0) | self._unfiltered).all()):
                return values, tokens, floor
            width = min(8 * width, self._vocab_size)

    def _kth_probability(self, values: Tensor) -> Tensor:
        """Return the lowest probability that top-k keeps, [B, N, 1]; 0 for sequences without top-k."""
        if self._top_k is None:
            return torch.zeros_like(values[..., :1])
        index = (self._top_k - 1).clamp(min=0).expand(*values.shape[:2], 1)
        return values.gather(-1, index).masked_fill(self._top_k == 0, 0.0)

    def _floor(self, values: Tensor, kth: Tensor) -> Tensor:
        floor = kth
        if self._top_p is not None:
            mass: Tensor | float = 1.0
            if self._top_k is not None:
                kept = torch.where(values < kth, 0.0, values).sum(-1, keepdim=True, dtype=torch.float64)
                mass = kept.masked_fill(self._top_k == 0, 1.0)
            index = (values.cumsum(-1, dtype=torch.float64) < self._top_p * mass).sum(-1, keepdim=True)
            lowest = values.gather(-1, index.clamp(max=values.shape[-1] - 1))
            floor = torch.maximum(floor, lowest.masked_fill(self._top_p == 1, 0.0))
        if self._min_p is not None:
            floor = torch.maximum(floor, values[..., :1] * self._min_p.to(values.dtype))
        return floor


def column(values: Sequence[float], off: float, device: torch.device) -> Tensor | None:
    """Return one value per sequence, [B, 1, 1], or None if the processor is off for all."""
    if all(value == off for value in values):
        return None
    dtype = torch.long if isinstance(off, int) else torch.float64
    return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)
