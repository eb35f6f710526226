"""Random numbers without a state.

Each number is the hash of a sequence's seed and of counters that identify its use. No number serves two purposes, and
none depends on which others are computed. All are the same in every batch and on every device.
"""

import torch
from torch import Tensor

_LARGE, _PARTS = 1 << 14, 64  # A vocabulary of at least _LARGE tokens is searched in _PARTS parts.
_BLOCK = 1 << 16  # the numbers that a CPU hashes at once, so that their states stay in its cache

# SplitMix64 has these constants (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), here as
# signed 64-bit integers: products of int64 tensors wrap around.
STEP = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def uniforms(seeds: Tensor, *counters: Tensor | int) -> Tensor:
    """Hash seeds and counters to uniform numbers: float64 in (0, 1), odd multiples of 2^-53, of the broadcast shape.

    Numbers of consecutive last counters, Long or integers, are successive outputs of SplitMix64.

    >>> import torch
    >>> draws = uniforms(torch.tensor([[1], [2]]), torch.arange(100_000))
    >>> draws.shape, [round(mean, 2) for mean in draws.mean(1).tolist()]
    (torch.Size([2, 100000]), [0.5, 0.5])
    """
    state = mix_bits(seeds + STEP)
    for counter in counters:
        state = mix_bits(state + _scaled(counter))
    return _uniform(state)


def gumbels(seeds: Tensor, *counters: Tensor | int) -> Tensor:
    """Hash seeds and counters as `uniforms` does, to standard Gumbel numbers: float32 in -3.7 … 36.8.

    The index at which log-probabilities plus such numbers are highest is a draw from these probabilities. Logarithms
    are computed in float64, which keeps the upper end; they may differ between devices in the last digit of float32.
    """
    state = state_of(seeds, *counters)
    if state.device.type != "cpu":
        return _gumbel(state).float()
    numbers = torch.empty(state.shape, dtype=torch.float32, device=state.device)
    for block, into in zip(state.reshape(-1).split(_BLOCK), numbers.view(-1).split(_BLOCK), strict=True):
        into.copy_(_gumbel(block))
    return numbers


def state_of(seeds: Tensor, *counters: Tensor | int) -> Tensor:
    """Return the states, Long, before their last mixing. A last counter n adds n · STEP to the state of 0."""
    state = seeds + STEP
    for counter in counters:
        state = mix_bits(state) + _scaled(counter)
    return state


def _gumbel(state: Tensor) -> Tensor:
    """Return float64 Gumbel numbers from states before their last mixing; the states are overwritten."""
    return _uniform(mix_bits(state)).log_().neg_().log_().neg_()


def _uniform(state: Tensor) -> Tensor:
    return _shifted(state, 12).double().add_(0.5).mul_(2.0**-52)


def _scaled(counter: Tensor | int) -> Tensor | int:
    if isinstance(counter, int):
        return (counter * STEP + 2**63) % 2**64 - 2**63
    return counter * STEP


def mix_bits(state: Tensor) -> Tensor:
    """Mix the bits of states [...] in place, because a copy of a whole vocabulary would not stay in the cache."""
    state.bitwise_xor_(_shifted(state, 30)).mul_(_MULTIPLIERS[0])
    state.bitwise_xor_(_shifted(state, 27)).mul_(_MULTIPLIERS[1])
    return state.bitwise_xor_(_shifted(state, 31))


def _shifted(state: Tensor, by: int) -> Tensor:
    """Shift right with zeros, as for unsigned numbers."""
    return (state >> by).bitwise_and_((1 << (64 - by)) - 1)


def most_probable(scores: Tensor) -> Tensor:
    """Return the index Long [...] of the highest of scores [..., V], the first of equals: a faster argmax for CPUs.

    On a CPU the maximum of each part of a vocabulary is found without its index, which halves the time.
    """
    size = scores.shape[-1]
    if scores.device.type != "cpu" or size < _LARGE or size % _PARTS:
        return scores.max(-1).indices
    parts = scores.unflatten(-1, (_PARTS, -1))
    first = parts.amax(-1).max(-1, keepdim=True).indices
    best = parts.take_along_dim(first.unsqueeze(-1), -2).squeeze(-2).max(-1).indices
    return first.squeeze(-1) * (size // _PARTS) + best
