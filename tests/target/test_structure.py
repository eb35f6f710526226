"""What is found in an unpatched model leaves it as it was."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clover.target.structure import Taps


def test_taps_give_a_module_its_own_forward_back() -> None:
    """A forward of the instance, as accelerate puts there, runs inside the block and is there after it."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)

    def doubled(inputs: Tensor) -> Tensor:
        return 2 * inputs

    first.forward = doubled
    taps, inputs = Taps([first, second]), torch.ones(1, 2)
    for _ in range(2):
        with taps.active():
            assert first(inputs).equal(2 * inputs) and first.forward is not doubled
            second(2 * inputs)
        assert taps.take(inputs).tolist() == [[1, 1, 2, 2]]
        assert first.forward is doubled and "forward" not in vars(second)
