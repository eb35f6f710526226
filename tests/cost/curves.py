"""Trainings with a known law: the logit of each accuracy grows by slope · damping^k in the k-th doubling."""

from __future__ import annotations

import math

from clover.cost.calibrate import Curve, CurvePoint
from clover.cost.extrapolate import tau_of

HEADS, DEPTH = 3, 4


def share(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def law_curve(name: str, start: float, slope: float, damping: float, points: int = 6) -> Curve:
    """Points at 1000 · 2^k tokens; head d starts at logit `start` - d / 2, acceptance one above."""
    found, logits, step = [], [start - d / 2 for d in range(HEADS)], slope
    for k in range(points):
        accuracy = tuple(share(logit) for logit in logits)
        found.append(CurvePoint(1000 * 2**k, accuracy, tau_of(share(logits[0] + 1), DEPTH)))
        logits = [logit + step for logit in logits]
        step *= damping
    return Curve(name, DEPTH, tuple(found))
