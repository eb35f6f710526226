"""How often each token of a vocabulary stands in texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clover.data.chat import Sample


def token_counts(samples: Sequence[Sample], vocab_size: int) -> Tensor:
    """Occurrences of each token where it is learnt, Long [vocab_size]; what is not learnt the target never writes."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for sample in samples:
        counts += sample.tokens[sample.loss_mask].long().bincount(minlength=vocab_size)
    return counts
