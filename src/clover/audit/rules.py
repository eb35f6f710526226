"""An independent, slow implementation of the sampling parameters; it shares no line with that of `clover.sampling`.

Shapes: n new tokens of one text, V vocabulary.
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

_NEAREST, _FARTHEST, _STEPS = -9.0, 4.0, 40  # powers of 10: gaps that are told apart, and how many at once


@dataclass(frozen=True)
class Rules:
    """How the new tokens of one text are chosen.

    Args:
        prompt: its tokens.
        new: tokens after it, Long [n]; each is chosen by what stands before it.
    """

    prompt: Sequence[int]
    new: Tensor
    params: SamplingParams

    def scores(self, logits: Tensor, at: Tensor) -> Tensor:
        """Return scores float64 [rows, V] of the new tokens at places `at`, Long [rows], from their logits [rows, V].

        Of a request that samples they are log-probabilities, up to a constant, and -inf for what is dropped.
        """
        params, scores = self.params, logits.to(torch.float64, copy=True)
        for token, value in params.logit_bias.items():
            scores[:, token] += value
        counts = self._counts(at, scores.shape[1])
        seen = counts > 0
        seen[:, list(self.prompt)] = True
        factor = params.repetition_penalty
        scores = torch.where(seen, torch.where(scores < 0, scores * factor, scores / factor), scores)
        scores = scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        scores[:, list(params.banned_tokens)] = -torch.inf
        return scores if params.greedy else _filtered(scores / params.temperature, params)

    def probs(self, logits: Tensor, at: Tensor) -> Tensor:
        """Return the distribution of the tokens at `at`, float64 [rows, V]; of a request that samples."""
        return self.scores(logits, at).softmax(-1)

    def choices(self, logits: Tensor, at: Tensor) -> Tensor:
        """Return the tokens to choose at `at`, Long [rows]; the first of equals."""
        scores = self.scores(logits, at)
        if not self.params.greedy:
            tokens = torch.arange(scores.shape[1], device=scores.device)
            seed = torch.tensor([[self.params.seed]], device=scores.device)
            scores += gumbels(seed, CHOICE, at[:, None], tokens)
        return scores.max(-1).indices

    def gap(self, logits: Tensor, at: int, token: int) -> float:
        """Return how far the logits of `token` and of the chosen one must move against each other until it is chosen.

        Infinite if it never is; without processors the difference of the two logits. `logits` are those of all, [V].
        """
        expected = int(self.choices(logits[None], torch.tensor([at], device=logits.device)))
        amounts = torch.logspace(_NEAREST, _FARTHEST, _STEPS, dtype=torch.float64, device=logits.device)
        gap = 0.0 if token == expected else inf
        for _ in range(2 if token != expected else 0):
            moved = logits.double().repeat(_STEPS, 1)
            moved[:, token] += amounts / 2
            moved[:, expected] -= amounts / 2
            wins = self.choices(moved, torch.full((_STEPS,), at, device=logits.device)) == token
            if not wins.any():
                return gap
            first = int(wins.int().argmax())
            gap = float(amounts[first])
            amounts = torch.linspace(float(amounts[max(first - 1, 0)]), gap, _STEPS).to(amounts)
        return gap

    def _counts(self, at: Tensor, vocabulary: int) -> Tensor:
        """Count each token among the new ones before `at`, [rows, V]."""
        before = torch.arange(len(self.new), device=at.device) < at[:, None]
        counts = torch.zeros(len(at), vocabulary, device=at.device)
        return counts.scatter_add(1, self.new.expand(len(at), -1), before.float())


def _filtered(scores: Tensor, params: SamplingParams) -> Tensor:
    """Drop what top-k, then top-p, and what min-p drops; equals of the last one that is kept are kept."""
    probs = scores.softmax(-1)
    ordered = probs.sort(-1, descending=True).values
    last = params.top_k if 0 < params.top_k < probs.shape[-1] else probs.shape[-1]
    floor = ordered[:, last - 1 : last]
    if params.top_p < 1:
        kept = ordered.masked_fill(ordered < floor, 0.0)
        count = (kept.cumsum(-1) < params.top_p * kept.sum(-1, keepdim=True)).sum(-1, keepdim=True)
        floor = torch.maximum(floor, ordered.gather(-1, count.clamp(max=probs.shape[-1] - 1)))
    floor = torch.maximum(floor, params.min_p * ordered[:, :1])
    return scores.masked_fill(probs < floor, -torch.inf)
