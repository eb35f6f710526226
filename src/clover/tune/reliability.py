"""How far a draft's probabilities can be believed: of the candidates it gave a probability, how many were right."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Candidates with probabilities in one tenth of 0 … 1.

    Args:
        predicted: their mean probability.
        observed: share of them that was the token that came.
        count: of candidates.
    """

    predicted: float
    observed: float
    count: int


@dataclass(frozen=True)
class Reliability:
    """The bins that hold candidates, before and after calibration.

    Args:
        depths: per depth, the error before and after.
    """

    before: tuple[Bin, ...]
    after: tuple[Bin, ...]
    depths: tuple[tuple[float, float], ...]

    @property
    def errors(self) -> tuple[float, float]:
        """Of all depths together, before and after."""
        return calibration_error(self.before), calibration_error(self.after)

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        return {**asdict(self), "errors": self.errors}


def make_bins(probabilities: Tensor, accepted: Tensor) -> tuple[Bin, ...]:
    """Sort candidates into tenths.

    Args:
        probabilities: float64 [n], 0 … 1.
        accepted: Bool [n].

    >>> make_bins(torch.tensor([0.05, 0.95, 0.85]).double(), torch.tensor([False, True, False]))[-1]
    Bin(predicted=0.95, observed=1.0, count=1)
    """
    place = (probabilities * BINS).long().clamp(0, BINS - 1)
    counts = torch.bincount(place, minlength=BINS)
    predicted = torch.bincount(place, weights=probabilities.double(), minlength=BINS) / counts
    observed = torch.bincount(place, weights=accepted.double(), minlength=BINS) / counts
    rows = zip(predicted.tolist(), observed.tolist(), counts.tolist(), strict=True)
    return tuple(Bin(round(mean, 6), round(share, 6), count) for mean, share, count in rows if count)


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """The expected calibration error: the mean distance of predicted and observed, weighted by candidates."""
    total = sum(bin.count for bin in bins)
    return sum(bin.count * abs(bin.predicted - bin.observed) for bin in bins) / total if total else 0.0


def compare_calibration(before: Tensor, after: Tensor, depths: Tensor, accepted: Tensor) -> Reliability:
    """Bins of the same candidates before and after calibration.

    Args:
        before, after: float64 [n] probabilities.
        depths: Long [n], from 1.
        accepted: Bool [n].
    """
    errors = []
    for depth in sorted(set(depths.tolist())):
        here = depths == depth
        errors.append(
            (
                calibration_error(make_bins(before[here], accepted[here])),
                calibration_error(make_bins(after[here], accepted[here])),
            )
        )
    return Reliability(make_bins(before, accepted), make_bins(after, accepted), tuple(errors))
