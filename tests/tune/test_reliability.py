import pytest
import torch

from clover.tune.reliability import Bin, calibration_error, compare_calibration, make_bins


def test_bins_hold_means_and_shares() -> None:
    probabilities = torch.tensor([0.11, 0.19, 0.15, 0.5, 1.0, 0.0]).double()
    accepted = torch.tensor([True, False, False, True, True, False])
    assert make_bins(probabilities, accepted) == (
        Bin(0.0, 0.0, 1),
        Bin(0.15, round(1 / 3, 6), 3),
        Bin(0.5, 1.0, 1),
        Bin(1.0, 1.0, 1),
    )


def test_the_error_is_the_mean_distance_of_candidates() -> None:
    assert calibration_error((Bin(0.2, 0.5, 30), Bin(0.9, 0.8, 10))) == pytest.approx(
        (30 * 0.3 + 10 * 0.1) / 40
    )
    assert calibration_error(()) == 0.0


def test_depths_are_judged_one_by_one() -> None:
    probabilities, accepted = torch.full((200,), 0.5).double(), torch.arange(200) % 4 == 0
    depths = torch.tensor([1, 1, 1, 1] * 25 + [2, 2, 2, 2] * 25)
    found = compare_calibration(probabilities, torch.where(depths == 1, 0.25, 0.5).double(), depths, accepted)
    assert found.depths == (pytest.approx((0.25, 0.0)), pytest.approx((0.25, 0.25)))
    assert found.errors == pytest.approx((0.25, 0.125))
    assert found.to_dict()["errors"] == found.errors
