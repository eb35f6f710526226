"""The dtype of a training is measured, not assumed."""

from pathlib import Path

import pytest
import torch

from clover.target import TargetModel, loading
from tests.families import tiny_model


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
def test_the_dtype_that_multiplies_faster_is_taken(
    faster: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "_seconds", lambda rows, weight: 1.0 if rows.dtype == faster else 2.0)
    tiny_model("llama").save_pretrained(tmp_path)
    assert TargetModel.load(tmp_path, dtype="fastest", device="cpu").dtype == torch.float32  # it is tiny
    monkeypatch.setattr(loading, "_SMALL", 1)
    assert TargetModel.load(tmp_path, dtype="fastest", device="cpu").dtype == faster
    assert loading.fastest_dtype(64, torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize(
    ("faster", "slower", "again"), [(1.0, 10.0, False), (1.0, 1.4, True), (0.1, 0.2, True)]
)
def test_long_runs_that_clearly_differ_are_not_repeated(
    faster: float, slower: float, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = []

    def seconds(rows: torch.Tensor, weight: torch.Tensor) -> float:
        timed.append(rows.dtype)
        return slower if rows.dtype == torch.bfloat16 else faster

    monkeypatch.setattr(loading, "_seconds", seconds)
    assert loading.fastest_dtype(loading._SMALL, torch.device("cpu")) == torch.float32
    assert (len(timed) > 2) == again
