"""Rows have the same bits in every place and number, near the plain product's, and a copy leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from clover.cpu.fixed_rows import FixedProduct, fixed_rows_copy
from clover.cpu.linear import can_pack

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packed", [False, True])
@torch.no_grad()
def test_bits_of_a_row(dtype: torch.dtype, packed: bool) -> None:
    if packed and not can_pack(dtype):
        pytest.skip("oneDNN packs no such weights here")
    noise = torch.Generator().manual_seed(1)
    for outputs, inputs in ((40, 33), (96, 1000), (1536, 64)):
        weight = torch.randn(outputs, inputs, generator=noise).to(dtype)
        bias = torch.randn(outputs, generator=noise).to(dtype)
        rows = torch.randn(70, inputs, generator=noise).to(dtype)
        product = FixedProduct(weight, bias, packed)
        alone = torch.cat([product(row[None], dtype) for row in rows])
        expected = rows.double() @ weight.double().T + bias.double()
        assert (alone.double() - expected).norm() < 0.01 * expected.norm()
        for count in (2, 31, 32, 33, 70):
            assert torch.equal(product(rows[:count], dtype), alone[:count]), count
            assert torch.equal(product(rows[-count:], dtype), alone[-count:]), count
        assert product(rows[:3], torch.float32).dtype == torch.float32
        assert product(rows[:0], dtype).shape == (0, outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_layers_of_a_copy(dtype: torch.dtype) -> None:
    model = nn.ModuleDict({"linear": nn.Linear(16, 24), "turned": Conv1D(8, 24)}).to(dtype)
    made = fixed_rows_copy(model, lambda whole: [whole])
    rows = torch.randn(3, 5, 16).to(dtype)
    wide, found = rows, rows
    for name in ("linear", "turned"):
        assert type(model[name]) is not type(made.model[name])
        assert made.model[name].weight is model[name].weight
        wide, found = model[name](wide), made.model[name](found)
    torch.testing.assert_close(found, wide, rtol=0.05, atol=0.05)
    assert made.replaced == 24 * 16 + 24 * 8 and not made.left
