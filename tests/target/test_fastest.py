"""The dtype of a training is measured, not assumed."""

from pathlib import Path

import pytest
import torch

from clover.target import TargetModel
from clover.target.loading import fastest_dtype
from tests.families import tiny_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_small_targets_multiply_in_float32_and_gpus_in_bfloat16(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    assert TargetModel.load(tmp_path, dtype="fastest", device="cpu").dtype == torch.float32
    assert fastest_dtype(64, CUDA) == torch.bfloat16


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("least", "most", "again"), [(1.0, 10.0, False), (1.0, 1.4, True), (0.1, 0.2, True)])
def test_the_dtype_that_multiplies_faster_is_taken_and_clear_differences_are_not_repeated(
    faster: torch.dtype, least: float, most: float, again: bool
) -> None:
    timed = []

    def seconds(rows: torch.Tensor, weight: torch.Tensor) -> float:
        timed.append(rows.dtype)
        return least if rows.dtype == faster else most

    assert fastest_dtype(256, CPU, seconds) == faster
    assert (len(timed) > 2) == again
