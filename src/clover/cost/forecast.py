"""The speed-up of a long training, from a probe: cost per step stays as it is, so speed-up(N) = s₂ · τ(N) / τ₂."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clover.cost.extrapolate import Calibration, Point, doublings, tau_growth
from clover.cost.intervals import Interval, interval, student_t
from clover.cost.measuring import PairTimes


@dataclass(frozen=True)
class SpeedupForecast:
    """The speed-up that a training will bring.

    Args:
        interval: the forecast with its interval.
        plain, drafted: seconds per token, Float64 [draws] each, drawn together: what the interval is made of.
    """

    interval: Interval
    plain: Tensor
    drafted: Tensor


def forecast_speedup(
    first: Point, second: Point, tokens: float, times: PairTimes, known: Calibration
) -> SpeedupForecast:
    """Extrapolate to a training on `tokens`, at least `second.tokens`.

    The interval joins that of the measured speed-up (bootstrap over prompts) with the calibration's spread, which grows
    with the distance in doublings. No draw goes below τ = 1, nor above what the tree can give.

    Args:
        first, second: the probe's trainings.
        times: of the second draft, its τ among them.
        known: the calibration.
    """
    growth = tau_growth(first, second, times.tau, times.depth, tokens, known)
    error = known.spread * doublings(second.tokens, tokens) * student_t(known.curves - 1)
    low, high = 1 / times.tau, max(1.0, (times.depth + 1) / times.tau)
    grown = (growth * torch.exp(error)).clamp(low, high)
    value = times.speedup.value * min(growth, high)
    plain, drafted = times.resampled()
    return SpeedupForecast(interval(value, plain / drafted * grown), plain, drafted / grown)
