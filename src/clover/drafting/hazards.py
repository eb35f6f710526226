"""How far paths are accepted: a hazard per token, and how much it varies within a text.

A token is accepted, if all before it are, with a chance of exp(-hazard). Texts have easy and hard passages, so each
step has a hazard of its own: a gamma distribution's, whose mean is the text's hazard and whose variance is `spread`
times the mean squared. A path that has come far is then likely to go on, as it is in the measurements (docs/auto.md).
Survival models know this as frailty (Vaupel, Manton and Stallard 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, inf, log

LEAST_HAZARD, MOST_HAZARD = 0.001, 8.0
MOST_SPREAD = 2.0
_LEAST_SPREAD = 0.01  # below, powers lose digits, and it makes no difference
_SPREADS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 1.75, MOST_SPREAD)


def survival(hazard: float, depth: float, spread: float) -> float:
    """How likely the first `depth` tokens of a path are accepted.

    >>> survival(0.5, 2, 0.0) == exp(-1.0), survival(0.5, 2, 1.0)
    (True, 0.5)
    """
    if spread < _LEAST_SPREAD:
        return exp(-hazard * depth)
    return (1 + spread * hazard * depth) ** (-1 / spread)


def accepted_of(hazard: float, depth: float, spread: float = 0.0) -> float:
    """Tokens accepted on average of a path of `depth` tokens, of the last of which there may be a part.

    >>> round(accepted_of(0.6931, 3), 3)  # 1/2 + 1/4 + 1/8
    0.875
    """
    whole = int(depth)
    rest = (depth - whole) * survival(hazard, whole + 1, spread)
    if spread < _LEAST_SPREAD:
        return -expm1(-hazard * whole) / expm1(hazard) + rest
    each, power = (
        spread * hazard,
        -1 / spread,
    )  # a sum of survivals, without a call for each: every step asks for it
    return sum([(1 + each * token) ** power for token in range(1, whole + 1)]) + rest


def hazard_of(accepted: float, depth: float, spread: float = 0.0) -> float:
    """The hazard at which `accepted_of` says `accepted`, between 0.001 and 8."""
    low, high = LEAST_HAZARD, MOST_HAZARD
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted_of(middle, depth, spread) > accepted else (low, middle)
    return low


def exposure(hazard: float, accepted: int, spread: float, ended: bool) -> float:
    """Tokens that a path was exposed for, each as much as the step's own hazard is likely to be over the text's.

    A step that went far has probably had a low hazard, so its tokens say less of the text's. The hazard at which all
    paths' exposures times it are as many as paths that ended is the likeliest one (this is a step of expectation
    maximisation).

    Args:
        accepted: tokens.
        ended: whether the next one was not accepted; else there was none.
    """
    if not ended:
        return accepted / (1 + spread * hazard * accepted)
    first, last = survival(hazard, accepted, spread), survival(hazard, accepted + 1, spread)
    ends = [
        token * chance / (1 + spread * hazard * token)
        for token, chance in ((accepted, first), (accepted + 1, last))
    ]
    return 1 / hazard - (ends[1] - ends[0]) / (first - last)


def fit(lengths: Sequence[int], depth: int) -> tuple[float, float]:
    """The likeliest hazard and spread.

    Args:
        lengths: of so many paths n tokens were accepted, n from 0 on.
        depth: of all paths.

    Returns:
        a hazard between 0.001 and 8, and a spread from 0 to 2.
    """
    accepted = sum(count * length for length, count in enumerate(lengths)) / max(sum(lengths), 1)
    found, likelihood = (hazard_of(accepted, depth), 0.0), -inf
    for spread in _SPREADS:
        hazard = hazard_of(accepted, depth, spread)
        chances = [survival(hazard, token, spread) for token in range(depth + 1)]
        ends = [max(one - other, 1e-300) for one, other in zip(chances, [*chances[1:], 0.0], strict=True)]
        value = sum(count * log(ends[length]) for length, count in enumerate(lengths) if count)
        if value > likelihood:
            found, likelihood = (hazard, spread), value
    return found
