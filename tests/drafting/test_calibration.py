"""The calibration of drafted probabilities: against a search by brute force, on known curves, from hostile files."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.drafting.calibration import Calibration
from clover.errors import UserError


def samples(slope: float, offset: float, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities and whether the nodes were accepted, by a known curve."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(count, generator=generator).double().clamp(0.001, 0.999)
    chances = (slope * (probabilities / (1 - probabilities)).log() + offset).sigmoid()
    return probabilities, torch.rand(count, generator=generator).double() < chances


def slow_objective(slope: float, offset: float, probabilities: Tensor, accepted: Tensor) -> float:
    """What the fit makes small: surprise at what happened, and half the squared distance from (1, 0)."""
    total = 0.5 * ((slope - 1) ** 2 + offset**2)
    for p, happened in zip(probabilities.tolist(), accepted.tolist()):
        chance = 1 / (1 + math.exp(-(slope * math.log(p / (1 - p)) + offset)))
        total -= math.log(chance if happened else 1 - chance)
    return total


@pytest.mark.parametrize("truth", [(1.0, 0.0), (0.4, 0.8), (2.0, -1.0)])
def test_no_other_curve_explains_the_samples_better(truth: tuple[float, float]) -> None:
    probabilities, accepted = samples(*truth, count=150)
    found = Calibration.fit(probabilities, torch.ones(150).long(), accepted)
    least = slow_objective(found.slopes[0], found.offsets[0], probabilities, accepted)
    for slope in (-0.05, -0.01, 0.0, 0.01, 0.05):
        for offset in (-0.05, -0.01, 0.0, 0.01, 0.05):
            here = slow_objective(found.slopes[0] + slope, found.offsets[0] + offset, probabilities, accepted)
            assert here >= least - 1e-9


def test_known_curves_are_found_at_each_depth() -> None:
    truths = [(0.5, 0.7), (1.0, 0.0), (1.6, -0.6)]
    parts = [samples(*truth, count=20_000, seed=i) for i, truth in enumerate(truths)]
    depths = torch.arange(1, 4).repeat_interleave(20_000)
    found = Calibration.fit(torch.cat([p for p, _ in parts]), depths, torch.cat([a for _, a in parts]))
    # The standard errors are below 0.02; 0.1 is more than five of them.
    assert found.slopes == pytest.approx([slope for slope, _ in truths], abs=0.1)
    assert found.offsets == pytest.approx([offset for _, offset in truths], abs=0.1)


def test_apply_is_the_formula_and_deep_nodes_take_the_last_curve() -> None:
    calibration = Calibration((0.5, 2.0), (0.3, -1.0))
    probabilities = torch.tensor([[0.1, 0.6], [0.9, 0.6]]).double()
    for depths in (torch.tensor([[1, 2], [7, 1]]), 1, 9):
        found = calibration.apply(probabilities, depths)
        each = torch.as_tensor(depths).expand(2, 2)
        for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
            slope, offset = ((0.5, 0.3), (2.0, -1.0))[min(int(each[place]), 2) - 1]
            p = float(probabilities[place])
            expected = 1 / (1 + math.exp(-(slope * math.log(p / (1 - p)) + offset)))
            assert float(found[place]) == pytest.approx(expected, abs=1e-12)


def test_order_is_kept_and_what_cannot_be_stays_out() -> None:
    probabilities = torch.linspace(0.001, 0.999, 500).double()
    found = Calibration((0.2,), (3.0,)).apply(probabilities, 1)
    assert bool((found.diff() > 0).all()) and bool((found < 1).all())
    assert Calibration((0.2,), (3.0,)).apply(torch.tensor([0.0, 1.0]), 1)[0] == 0


def test_samples_that_a_threshold_divides_give_finite_curves() -> None:
    probabilities = torch.linspace(0.01, 0.99, 60).double()
    for accepted in (probabilities > 0.5, probabilities > 0, probabilities > 1):
        found = Calibration.fit(probabilities, torch.ones(60).long(), accepted)
        assert Calibration.from_json(found.to_json()) == found


def test_a_thin_depth_takes_the_one_before_it() -> None:
    probabilities, accepted = samples(0.5, 0.7, count=125)
    depths = torch.tensor([1] * 100 + [2] * 5 + [3] * 20)
    found = Calibration.fit(probabilities, depths, accepted)
    assert len(found.slopes) == 3
    assert (found.slopes[1], found.offsets[1]) == (found.slopes[0], found.offsets[0])


@pytest.mark.parametrize("count", [0, 19])
def test_too_few_samples_are_refused(count: int) -> None:
    probabilities, accepted = samples(1.0, 0.0, count)
    with pytest.raises(UserError, match="at least 20"):
        Calibration.fit(probabilities, torch.ones(count).long(), accepted)


def test_json_brings_back_the_same_curves() -> None:
    calibration = Calibration((0.7312345678912345, 1.2), (-0.1, 1e-17))
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


@pytest.mark.parametrize("values", [
    None, [], "x", {}, {"slopes": [1.0]}, {"slopes": [], "offsets": []}, {"slopes": [1.0], "offsets": []},
    {"slopes": [0], "offsets": [0]}, {"slopes": [-1], "offsets": [0]}, {"slopes": [1e9], "offsets": [0]},
    {"slopes": [1], "offsets": [-21]}, {"slopes": [True], "offsets": [0]}, {"slopes": ["1"], "offsets": [0]},
    {"slopes": [float("nan")], "offsets": [0]}, {"slopes": [1], "offsets": [float("inf")]}, {"slopes": 1, "offsets": 0},
    {"slopes": [10**400], "offsets": [0]},
])  # fmt: skip
def test_other_values_are_refused(values: Any) -> None:
    with pytest.raises(UserError, match="calibration"):
        Calibration.from_json(values)
