"""How likely a draft's candidate is accepted, given the probability that the draft itself gave it.

Platt scaling per depth: the log-odds of a probability are stretched and shifted before they are turned back,
``sigmoid(slope * log(p / (1 - p)) + offset)``. The slope is one over the temperature of temperature scaling (Guo et al.
2017, 1706.04599, section 4); the offset also lets a draft be too sure or too shy on the whole. It beat temperature
alone and isotonic regression on held-apart prompts (docs/auto.md), and it is strictly rising, so it never changes
the order of one node's children.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clover.errors import UserError

_EDGE = 1e-4  # probabilities are held this far from 0 and 1, where log-odds have no end
_FEWEST = 20  # candidates of a depth, with fewer the depth before it speaks for it
_STEEPEST = 20.0  # bound on slopes and offsets: beyond it everything is 0 or 1 anyway
_ROUNDS = 50


@dataclass(frozen=True)
class Calibration:
    """The curve of each depth.

    Attributes:
        slopes: above 0, one per depth from 1 on; deeper nodes take the last one's.
        offsets: as many.

    Raises:
        UserError: no depth, not as many offsets as slopes, or a value that no fit gives.

    >>> Calibration((1.0,), (0.0,)).apply(torch.tensor([0.2, 0.7]).double(), 3)
    tensor([0.2000, 0.7000], dtype=torch.float64)
    """

    slopes: tuple[float, ...]
    offsets: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.slopes or len(self.slopes) != len(self.offsets):
            raise UserError("a calibration needs a slope and an offset for each depth, at least one of each")
        if not all(0 < slope <= _STEEPEST for slope in self.slopes):
            raise UserError(f"a calibration's slopes lie above 0 and up to {_STEEPEST:g}")
        if not all(abs(offset) <= _STEEPEST for offset in self.offsets):
            raise UserError(f"a calibration's offsets lie between {-_STEEPEST:g} and {_STEEPEST:g}")

    @classmethod
    def fit(cls, probabilities: Tensor, depths: Tensor, accepted: Tensor) -> Calibration:
        """Find the curves under which what happened was most likely.

        Args:
            probabilities: [n], of drafted nodes whose parent was accepted: the share that the draft gave the node
                among its parent's children (`clover.drafting.best.probabilities`).
            depths: Long [n], from 1.
            accepted: Bool [n], whether the node was accepted.

        Raises:
            UserError: fewer than 20 nodes at depth 1.
        """
        curves: list[tuple[float, float]] = []
        for depth in range(1, int(depths.max()) + 1 if len(depths) else 1):
            here = depths == depth
            if int(here.sum()) >= _FEWEST:
                curves.append(_fit_curve(probabilities[here].double(), accepted[here].double()))
            elif curves:
                curves.append(curves[-1])
            else:
                break
        if not curves:
            raise UserError(
                f"a calibration needs at least {_FEWEST} drafted tokens at depth 1; give more text"
            )
        slopes, offsets = zip(*curves, strict=True)
        return cls(slopes, offsets)

    def apply(self, probabilities: Tensor, depths: Tensor | int) -> Tensor:
        """Turn the draft's probabilities into those of being accepted once the parent is.

        Args:
            probabilities: [...]; 0 stays 0, for what cannot be a child.
            depths: of the nodes, from 1: a number for all, or Long [...].

        Returns:
            [...] of the same dtype, above 0 and below 1 elsewhere.
        """
        slope, offset = (
            self._curve(depths) if isinstance(depths, int) else self._curves(depths, probabilities)
        )
        return torch.where(probabilities > 0, (slope * _log_odds(probabilities) + offset).sigmoid(), 0.0)

    def _curve(self, depth: int) -> tuple[float, float]:
        place = min(depth, len(self.slopes)) - 1
        return self.slopes[place], self.offsets[place]

    def _curves(self, depths: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        places = depths.clamp(max=len(self.slopes)) - 1
        return like.new_tensor(self.slopes)[places], like.new_tensor(self.offsets)[places]

    def to_json(self) -> dict[str, Any]:
        """Values for a JSON file."""
        return {"slopes": list(self.slopes), "offsets": list(self.offsets)}

    @classmethod
    def from_json(cls, values: object) -> Calibration:
        """Read what `to_json` gave.

        Raises:
            UserError: it is something else.
        """
        found = values if isinstance(values, dict) else {}
        lists = [found.get("slopes"), found.get("offsets")]
        if not all(isinstance(one, list) and all(map(_is_number, one)) for one in lists):
            raise UserError("a calibration is an object with two lists of numbers, slopes and offsets")
        slopes, offsets = (tuple(map(float, one)) for one in lists)  # type: ignore[arg-type]
        return cls(slopes, offsets)


def _log_odds(probabilities: Tensor) -> Tensor:
    return torch.special.logit(probabilities, eps=_EDGE)


def _fit_curve(probabilities: Tensor, accepted: Tensor) -> tuple[float, float]:
    """Slope and offset of greatest likelihood, by Newton's method, drawn towards 1 and 0 by one made-up sample each.

    The pull keeps both finite where the samples alone are divided by a threshold; with hundreds it is not felt.

    Args:
        probabilities, accepted: float64 [n].
    """
    odds = _log_odds(probabilities)
    inputs = torch.stack((odds, torch.ones_like(odds)), dim=1)
    start = torch.tensor([1.0, 0.0], dtype=torch.float64, device=odds.device)
    weights, pull = start, torch.eye(2, dtype=torch.float64, device=odds.device)
    for _ in range(_ROUNDS):
        chances = (inputs @ weights).sigmoid()
        gradient = inputs.T @ (chances - accepted) + pull @ (weights - start)
        curvature = (inputs * (chances * (1 - chances)).unsqueeze(1)).T @ inputs + pull
        step = torch.linalg.solve(curvature, gradient)
        weights = weights - step.clamp(-1, 1)
        if float(step.abs().max()) < 1e-10:
            break
    slope, offset = weights.tolist()
    return min(max(slope, 1 / _STEEPEST), _STEEPEST), min(max(offset, -_STEEPEST), _STEEPEST)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9  # type: ignore[arg-type]
