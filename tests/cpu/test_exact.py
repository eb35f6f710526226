"""Products that depend on the rows beside them are found, and what has no exact copy is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from clover.cpu.exact import ExactModel, exact_layers
from clover.cpu.fixed_rows import FixedProduct, fixed_rows_copy
from clover.errors import UserError


def copied(product: object, layer: nn.Linear) -> ExactModel:
    return ExactModel(None, exact_layers([layer], product), {})  # type: ignore[arg-type]


def test_products_that_depend_on_other_rows_are_found() -> None:
    layer = nn.Linear(24, 8)
    fixed = FixedProduct(layer.weight.detach(), None, packed=False)

    def by_count(rows: Tensor, dtype: torch.dtype) -> Tensor:
        return fixed(rows, dtype) * (1 + len(rows) / 1000)

    def by_place(rows: Tensor, dtype: torch.dtype) -> Tensor:
        return fixed(rows, dtype) * torch.linspace(1, 2, len(rows))[:, None]

    assert copied(fixed, layer).why_uneven() is None
    for product in (by_count, by_place):
        reason = copied(product, layer).why_uneven()
        assert reason == "this processor's products of 24 numbers depend on the rows beside them"


def test_what_cannot_be_copied_says_so() -> None:
    for dtype in (torch.float16, torch.float64):
        with pytest.raises(UserError, match="bfloat16 or float32"):
            fixed_rows_copy(nn.Linear(8, 8).to(dtype), lambda whole: [whole])
    model = nn.Sequential(nn.Linear(8, 8))
    model[0].forward = model[0].forward  # type: ignore[method-assign]  # as hooks of device_map do
    with pytest.raises(UserError, match=r"device_map.*--exact"):
        fixed_rows_copy(model, lambda whole: [whole])
