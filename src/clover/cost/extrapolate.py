"""How τ grows with training, from τ of a short training and the accuracy of the heads in two.

The logit of a draft's accuracy grows about linearly in the logarithm of the training tokens, and ever more slowly. The
heads' mean growth in the measured doubling, drawn towards what is usual, is carried on, starting from the acceptance
that gives the measured τ; each further doubling of the tokens adds `damping` times what the one before added.

The accuracy of the heads alone, by way of 1 + Σ_d Π_{i≤d} accuracy_i, says less: it is that of first choices on the
texts that were given, while τ is that of a tree on what the target itself writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

_LEAST_LOGIT = 7.0  # accuracies from 0.1 % to 99.9 %


@dataclass(frozen=True)
class Point:
    """A finished training: its tokens, and the accuracy of each head on held-out texts, 0 … 1."""

    tokens: int
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """What the extrapolation knows from earlier trainings.

    Args:
        prior_slope: usual growth of a logit per doubling of the tokens.
        weight: of the measured slope against the usual one, 0 … 1.
        damping: growth in a doubling relative to the doubling before, 0 … 1.
        spread: standard error of log τ per doubling of the distance.
        curves: trainings of growing length that the spread was estimated from.
    """

    prior_slope: float
    weight: float
    damping: float
    spread: float
    curves: int


def doublings(before: float, after: float) -> float:
    """How often `before` is doubled to give `after`."""
    return math.log2(after / before)


def tau_of(acceptance: float, depth: int) -> float:
    """τ where a draft token of any depth is accepted with this probability: 1 + Σ_d acceptance^d.

    >>> tau_of(0.5, 2)
    1.75
    """
    return sum(acceptance**d for d in range(depth + 1))


@lru_cache(maxsize=1024)  # a fit asks for the same few again and again
def acceptance_of(tau: float, depth: int) -> float:
    """The acceptance, 0 … 1, that gives this τ, 1 … depth + 1."""
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if tau_of(middle, depth) < tau:
            low = middle
        else:
            high = middle
    return middle


def tau_growth(
    first: Point, second: Point, tau: float, depth: int, tokens: float, known: Calibration
) -> float:
    """τ after `tokens`, at least `second.tokens`, over τ at `second`; never less than 1.

    Args:
        tau: measured at `second`, with a tree of depth `depth`.
    """
    measured = fmean(_logit(b) - _logit(a) for a, b in zip(first.accuracy, second.accuracy, strict=True))
    slope = known.weight * measured / doublings(first.tokens, second.tokens)
    slope = max(0.0, slope + (1 - known.weight) * known.prior_slope)
    grown = slope * _damped(doublings(second.tokens, tokens), known.damping)
    before = _logit(acceptance_of(tau, depth))
    return tau_of(_share(before + grown), depth) / tau_of(_share(before), depth)


def _damped(distance: float, damping: float) -> float:
    """Sum of damping^k over the `distance` doublings k = 1, 2, …, also between whole numbers."""
    if damping == 1:
        return distance
    return damping * (1 - damping**distance) / (1 - damping)


def _logit(share: float) -> float:
    if not 0 < share < 1:
        return math.copysign(_LEAST_LOGIT, share - 0.5)
    return max(-_LEAST_LOGIT, min(_LEAST_LOGIT, math.log(share / (1 - share))))


def _share(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
