"""Draw one token per sequence from the whole vocabulary, and skip the work for tokens that cannot win.

The token with the highest log-probability plus Gumbel number wins (`clover.sampling.Coupling`). The sum of the most
probable token is a lower bound. A much less probable token needs a very high number, which few hashes give. The bits of
a hash show whether it is one of them; logarithms and sums are computed only for these few.

Shapes: B batch, V vocabulary, M tokens that may win.
"""

import math

import torch
from torch import Tensor

from clover.sampling.gumbel_cache import CHOICE
from clover.sampling.numbers import STEP, gumbels, mix_bits, most_probable, state_of

_REACH = 9.0  # A token this far below the bound wins only with a number that one hash in 8,000 gives.
_MARGIN, _RELATIVE = 1e-2, 1e-6  # the tolerances for rounding of the reach and of the bound


def winners(scores: Tensor, seeds: Tensor, positions: Tensor, greedy: list[bool]) -> Tensor:
    """Return for each sequence the token with the highest score plus Gumbel number, Long [B], the first of equals.

    Args:
        scores: [B, V], float32 or float64, on a CPU.
        seeds, positions: Long [B], the seeds and positions of the numbers (`CHOICE`).
        greedy: True for sequences whose result is not used, so that they need no work.
    """
    steps = torch.arange(scores.shape[1], device=scores.device) * STEP
    best = most_probable(scores)
    tops = scores.gather(1, best.unsqueeze(1)) + gumbels(
        seeds[:, None], CHOICE, positions[:, None], best[:, None]
    )
    states = state_of(seeds, CHOICE, positions, 0)
    for row, (state, bound) in enumerate(zip(states.split(1), tops[:, 0].tolist(), strict=True)):
        if not greedy[row]:
            tokens = _candidates(scores[row], state + steps, bound)
            numbers = gumbels(seeds[row : row + 1], CHOICE, positions[row : row + 1], tokens)
            best[row] = tokens[(scores[row, tokens] + numbers).max(0).indices]
    return best


def _candidates(scores: Tensor, states: Tensor, bound: float) -> Tensor:
    """Return the tokens that may reach the bound, Long [M], ascending, from scores [V] and unmixed states Long [V]."""
    if not math.isfinite(bound):
        return torch.arange(len(scores), device=scores.device)
    near = bound - _REACH
    number = _REACH - _MARGIN - _RELATIVE * abs(bound)
    # A uniform number above exp(-exp(-number)) is among the last `most` of 2^64 unsigned states: signed, -most … -1.
    most = -int(2.0**64 * -math.expm1(-math.exp(-number)))
    states = mix_bits(states)
    return ((scores > near) | ((states >= max(most, -(2**63))) & (states < 0))).nonzero()[:, 0]
