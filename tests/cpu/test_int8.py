"""Int8 layers sum exactly, give every row the same numbers whatever is beside it, and leave no trace on the model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from math import inf, log

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from clover.cpu import int8
from clover.cpu.exact import ExactLayer
from clover.cpu.int8 import Int8Product, int8_copy, int8_layers
from clover.errors import UserError

pytestmark = pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")
SIZES = ((1, 1), (5, 3), (33, 30), (64, 1536), (48, 8960))


def numbers(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers with outliers in a few columns, as activations have them."""
    values = torch.randn(size)
    values[:, ::7] *= 40
    return values.to(dtype)


def slow_product(rows: Tensor, weight: Tensor, bits: int) -> Tensor:
    """The product by its definition, with whole numbers in float64, where the sums are exact."""
    most = {8: 127, 15: 127 * 128}[bits]
    row_scales = rows.float().abs().amax(1, keepdim=True).clamp(min=1e-30) / most
    scales = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    whole, weights = (rows.float() / row_scales).round(), (weight.float() / scales).round()
    assert whole.abs().max() <= most and weights.abs().max() <= 127
    return (whole.double() @ weights.double().T) * scales.T * row_scales


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_product_is_the_slow_one(size: tuple[int, int], fine: bool) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        weight, rows = torch.randn(size).to(dtype), numbers(7, size[1], dtype=dtype)
        expected = slow_product(rows, weight, 15 if fine else 8)
        found = Int8Product(weight, fine)(rows).double()
        assert found.dtype == torch.float64 and found.shape == (7, size[0])
        # Three roundings to float32: of the sum, and of its product with either scale. Fine sums have one more.
        torch.testing.assert_close(
            found, expected, rtol=5 * 2**-24, atol=float(expected.abs().max()) * 2**-23
        )


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_row_does_not_depend_on_the_rows_beside_it(size: tuple[int, int], fine: bool) -> None:
    torch.manual_seed(1)
    product, rows = Int8Product(torch.randn(size), fine), numbers(300, size[1])
    whole = product(rows)
    for count in (1, 2, 7, 26, 64, 193):
        for start in (0, 11, 300 - count):
            assert torch.equal(product(rows[start : start + count]), whole[start : start + count])
    order = torch.randperm(300)
    assert torch.equal(product(rows[order]), whole[order])


def test_the_largest_numbers_are_summed_exactly() -> None:
    weight = torch.ones(16, 8960)
    weight[1::2] = -1
    for rows in (torch.ones(3, 8960), -torch.ones(3, 8960)):
        assert torch.equal(Int8Product(weight)(rows), rows[:, :1] * weight[:, 0] * 8960)


@pytest.mark.parametrize("instructions", ["AVX2", pytest.param("AVX512_CORE", marks=pytest.mark.long)])
def test_processors_without_instructions_for_int8_are_exact_in_another_way(instructions: str) -> None:
    code = (
        "import torch; from clover.cpu import int8; torch.manual_seed(0); "
        "weight, rows = torch.randint(-9, 10, (2, 8, 64)).float(); weight[:, 0] = rows[:, 0] = 127; "
        "assert int8.sums_are_exact(); found = int8.Int8Product(weight)(rows); "
        "assert (found - rows @ weight.T).abs().max() < 1; print(int8._way().__name__)"
    )
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "of_halves"


@pytest.mark.parametrize("way", [int8._Sums.of_signed, int8._Sums.of_shifted, int8._Sums.of_halves])
def test_every_exact_way_gives_the_same_sums(
    way: Callable[[int8._Sums, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    if int8._seconds(way) == inf:
        pytest.skip("this way is not exact on this processor")
    torch.manual_seed(5)
    product, rows = Int8Product(torch.randn(48, 96)), numbers(30, 96)
    expected = product(rows)
    monkeypatch.setattr(int8, "_way", lambda: way)
    found = product(rows)
    # Halves are rounded to float32 before they are subtracted.
    close = 2**-20 if way is int8._Sums.of_halves else 0.0
    torch.testing.assert_close(found, expected, rtol=close, atol=close * float(expected.abs().max()))
    assert torch.equal(product(rows[7:9]), found[7:9])


def test_a_way_that_is_a_slow_loop_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"of_signed": 4.1, "of_shifted": 1.0, "of_halves": 0.99}
    monkeypatch.setattr(int8, "_seconds", lambda way: seconds[way.__name__])
    choose = int8._way.__wrapped__
    assert choose() is int8._Sums.of_shifted
    seconds["of_signed"] = 3.9  # not so much slower that noise could not be the reason
    assert choose() is int8._Sums.of_signed
    seconds |= {"of_signed": inf, "of_shifted": inf}
    assert choose() is int8._Sums.of_halves
    seconds["of_halves"] = inf
    assert choose() is None


def test_zeros_and_numbers_that_are_not_finite() -> None:
    product = Int8Product(torch.randn(4, 8))
    rows = torch.randn(4, 8)
    rows[0], rows[1, 3], rows[2, 3] = 0, torch.nan, torch.inf
    found = product(rows)
    assert torch.equal(found[0], torch.zeros(4)) and found[3].isfinite().all()
    assert found[1].isnan().all() and not found[2].isfinite().any()
    assert torch.equal(Int8Product(torch.zeros(4, 8))(torch.ones(2, 8)), torch.zeros(2, 4))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 48), nn.Linear(32, 40)
        self.down_proj, self.other = nn.Linear(48, 32, bias=False), Conv1D(20, 32)
        self.table, self.raw = nn.Embedding(10, 32), nn.Parameter(torch.randn(3, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        wide = self.gate_proj(inputs)
        return self.other(self.down_proj(wide * self.up_proj(inputs).sum(-1, keepdim=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_a_copy(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    model = Gated().to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = int8_copy(model, lambda whole: [whole])
    fast, inputs = copied.model, torch.randn(2, 5, 32, dtype=dtype)
    with torch.inference_mode():
        found, plain = fast(inputs), model(inputs)
    assert found.dtype == dtype and found.shape == plain.shape == (2, 5, 20)
    error = (found.double() - plain.double()).norm() / plain.double().norm()
    assert 0 < error < 0.03
    assert copied.replaced == sum(weight.numel() for name, weight in before.items() if "weight" in name) - 320
    assert copied.left == {"raw": 12}
    assert type(fast.gate_proj) is ExactLayer and type(model.gate_proj) is nn.Linear
    assert fast.gate_proj.weight is model.gate_proj.weight
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(
        fast(inputs), model(inputs), rtol=0, atol=0
    )  # gradients take the plain weights


def test_only_the_parts_that_were_asked_for() -> None:
    model = nn.ModuleDict({"inside": Gated(), "outside": nn.Linear(8, 8)})
    copied = int8_copy(model, lambda whole: [whole["inside"]])
    assert type(copied.model["outside"]) is nn.Linear
    assert copied.left == {"inside.raw": 12}


def test_layers_that_share_an_input_may_be_called_in_any_order() -> None:
    torch.manual_seed(3)
    layers = [nn.Linear(16, size) for size in (8, 24)]
    alone = [int8_layers([layer])[0] for layer in layers]
    together = int8_layers(layers)
    one, other = torch.randn(3, 16), torch.randn(2, 16)
    calls = ((1, one), (0, one), (1, other), (1, one), (0, other), (0, one), (1, one))
    with torch.no_grad():
        for index, inputs in calls:
            assert torch.equal(together[index](inputs), alone[index](inputs))


@pytest.mark.parametrize(("changed", "expected"), [(0.1, [False, True]), (0.0, [True, True])])
def test_rows_with_outliers_are_rounded_finely(
    changed: float, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where distributions change more than they may, smaller outliers are enough."""
    monkeypatch.setattr(int8, "_CHANGED", changed)
    torch.manual_seed(4)
    model = nn.ModuleDict({"calm": nn.Linear(64, 8), "loud": nn.Linear(64, 8)})
    calm, loud = torch.randn(20, 64), torch.randn(20, 64)
    loud[:, 5] *= 100
    with torch.no_grad():
        model["loud"].weight[:, 5] = 0  # pyright: ignore[reportIndexIssue, reportArgumentType]
    copied = int8_copy(model, lambda whole: [whole])

    def run() -> Tensor:
        with torch.no_grad():
            copied.model["loud"](loud)
            return copied.model["calm"](calm)[None]

    int8.refine(copied, run)
    fine = [layer.shared.product.fine for layer in copied.layers]  # type: ignore[attr-defined]
    assert fine == expected
    with torch.no_grad():
        found, plain = copied.model["loud"](loud), model["loud"](loud)
    assert (found - plain).norm() / plain.norm() < 0.01


def test_how_far_distributions_are() -> None:
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [1.0, 2.0, 3.0]]]).log_softmax(-1)
    assert int8._divergence(logits, logits) == 0
    other = torch.tensor([0.75, 0.25, 0.0]).log()
    found = int8._divergence(logits[:, :1], other[None, None])
    assert found == pytest.approx(0.5 * log(0.5 / 0.75) + 0.5 * log(0.5 / 0.25))


def test_what_cannot_be_rounded_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Gated()
    model.down_proj.forward = model.down_proj.forward  # type: ignore[method-assign]  # as hooks of device_map do
    with pytest.raises(UserError, match="device_map"):
        int8_copy(model, lambda whole: [whole])
    with pytest.raises(UserError, match="choose the device cpu"):
        int8.check_processor(torch.device("cuda"))
    monkeypatch.setattr(int8, "sums_are_exact", lambda: False)
    with pytest.raises(UserError, match="not exact"):
        int8.check_processor(torch.device("cpu"))


@torch.inference_mode()
def test_a_large_head_is_a_product_of_int8_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.inference_mode(False):
        torch.manual_seed(0)
        head, rows = nn.Linear(256, 700), torch.randn(26, 256)
    expected = head(rows)
    assert not isinstance(int8.int8_head(head), ExactLayer)
    monkeypatch.setattr(int8, "_LARGE", head.weight.numel())
    large = int8.int8_head(head)
    assert isinstance(large, ExactLayer) == int8.sums_are_exact()
    assert (large(rows) - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("fine", [False, True])
def test_wide_products_are_made_of_parts(fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    weight, bias, rows = torch.randn(150, 64), torch.randn(150), numbers(500, 64)
    whole = Int8Product(weight, fine, bias)(rows)
    monkeypatch.setattr(int8, "_WIDEST", 64)
    monkeypatch.setattr(int8, "_ROUNDED", 30)
    parted = Int8Product(weight, fine, bias)
    assert torch.equal(parted(rows), whole) and torch.equal(parted(rows[7:9]), whole[7:9])
    assert torch.equal(parted(rows, torch.bfloat16), whole.to(torch.bfloat16))
