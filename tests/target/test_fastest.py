"""The faster dtype is measured with as many rows as will be run, not assumed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from clover.target import TargetModel
from clover.target.loading import FEW_ROWS, MANY_ROWS, fastest_dtype
from tests.families import tiny_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_small_targets_multiply_in_float32_and_gpus_in_bfloat16(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    assert TargetModel.load(tmp_path, dtype="fastest", device="cpu").dtype == torch.float32
    assert fastest_dtype(64, FEW_ROWS, CUDA) == torch.bfloat16


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("least", "most", "again"), [(1.0, 10.0, False), (1.0, 1.4, True), (0.1, 0.2, True)])
def test_the_dtype_that_multiplies_faster_is_taken_and_clear_differences_are_not_repeated(
    faster: torch.dtype, least: float, most: float, again: bool
) -> None:
    timed = []

    def seconds(rows: torch.Tensor, layers: Sequence[nn.Linear]) -> float:
        timed.append(rows.dtype)
        assert rows.shape == (MANY_ROWS, 256) and {layer.weight.dtype for layer in layers} == {rows.dtype}
        return least if rows.dtype == faster else most

    assert fastest_dtype(256, MANY_ROWS, CPU, seconds) == faster
    assert (len(timed) > 2) == again


def test_with_few_rows_the_weights_are_more_than_a_cache_holds() -> None:
    sizes = []

    def seconds(rows: torch.Tensor, layers: Sequence[nn.Linear]) -> float:
        assert len(rows) == FEW_ROWS and layers[0](rows).shape == (FEW_ROWS, 1024)
        sizes.append(sum(layer.weight.nbytes for layer in layers))
        return 1.0

    fastest_dtype(256, FEW_ROWS, CPU, seconds)
    assert min(sizes) >= 2**27
