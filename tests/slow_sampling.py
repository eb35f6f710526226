"""What sampling means, one step after the other in plain Python: the reference that distributions are held against."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clover.sampling import SamplingParams


def slow_probs(scores: Sequence[float], params: SamplingParams, text: Sequence[int]) -> list[float]:
    """The distribution after a text, from the model's scores: repetition penalty, temperature, top-p."""
    scores = list(scores)
    for token in set(text):
        scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
    probs = (torch.tensor(scores, dtype=torch.float64) / params.temperature).softmax(-1).tolist()
    kept, mass = [0.0] * len(scores), 0.0
    for token in sorted(range(len(scores)), key=lambda token: -probs[token]):
        if mass < params.top_p:
            kept[token] = probs[token]
        mass += probs[token]
    return [prob / sum(kept) for prob in kept]
