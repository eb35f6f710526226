"""An independent, slow implementation of the sampling parameters; it shares no code with `clover.sampling`.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from clover.sampling import SamplingParams
from clover.sampling.gumbel_cache import CHOICE
from clover.sampling.numbers import gumbels

_FARTHEST, _HALVINGS = 1e4, 45  # the largest gap, and the bisection steps that measure a smaller one


@dataclass(frozen=True)
class Rules:
    """The rules that choose the tokens after a prompt, from the logits [V] of each and the new tokens before it."""

    prompt: Sequence[int]
    params: SamplingParams

    def scores(self, logits: Tensor, new: Sequence[int]) -> Tensor:
        """Return scores float64 [V]: log-probabilities up to a constant; in sampled texts -inf for dropped tokens."""
        params, scores = self.params, logits.to(torch.float64, copy=True)
        for token, value in params.logit_bias.items():
            scores[token] += value
        counts = torch.tensor(new, dtype=torch.long).bincount(minlength=len(scores)).to(scores)
        seen = counts > 0
        seen[list(self.prompt)] = True
        factor = params.repetition_penalty
        scores = torch.where(seen, torch.where(scores < 0, scores * factor, scores / factor), scores)
        present = (counts > 0).to(scores)
        scores = scores - params.frequency_penalty * counts - params.presence_penalty * present
        scores[list(params.banned_tokens)] = -inf
        return scores if params.greedy else _filtered(scores / params.temperature, params)

    def choice(self, logits: Tensor, new: Sequence[int]) -> int:
        """Return the next token: the one with the highest score, the first of equals."""
        scores = self.scores(logits, new)
        if not self.params.greedy:
            seed, place = (
                torch.tensor([number], device=scores.device) for number in (self.params.seed, len(new))
            )
            scores += gumbels(seed, CHOICE, place, torch.arange(len(scores), device=scores.device))
        return int(scores.argmax())

    def gap(self, logits: Tensor, new: Sequence[int], token: int) -> float:
        """Return how far the logits of `token` and of the choice must move until `token` is chosen; inf if never."""
        expected = self.choice(logits, new)
        if token == expected:
            return 0.0
        direction = torch.zeros_like(logits, dtype=torch.float64)
        direction[token], direction[expected] = 0.5, -0.5
        low, high = 0.0, _FARTHEST
        if self.choice(logits + high * direction, new) != token:
            return inf
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            chosen = self.choice(logits + middle * direction, new) == token
            low, high = (low, middle) if chosen else (middle, high)
        return high

    def tail_masses(self, logits: Tensor, new: Sequence[int], token: int) -> tuple[float, float]:
        """Return the probability of all tokens that are as probable as `token`, and that of all more probable ones."""
        probs = self.scores(logits, new).softmax(-1)
        return float(probs[probs == probs[token]].sum()), float(probs[probs > probs[token]].sum())


def _filtered(scores: Tensor, params: SamplingParams) -> Tensor:
    """Drop tokens by top-k, then top-p, then min-p; tokens as probable as the last kept one are kept."""
    probs = scores.softmax(-1)
    ordered = probs.sort(descending=True).values
    floor = ordered[params.top_k - 1] if 0 < params.top_k < len(probs) else ordered[-1]
    if params.top_p < 1:
        kept = ordered.masked_fill(ordered < floor, 0.0)
        count = int((kept.cumsum(-1) < params.top_p * kept.sum()).sum())
        floor = torch.maximum(floor, ordered[min(count, len(probs) - 1)])
    floor = torch.maximum(floor, params.min_p * ordered[0])
    return scores.masked_fill(probs < floor, -inf)
