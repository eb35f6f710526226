"""Products with rounded weights: how far off they may be, and which weights they are for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clover.target import packing
from clover.target.packing import PackedLinears
from clover.target.rounding import FEW_ROWS, RoundedLinear, can_round
from clover.target.rows import HeadRows

INPUTS = 256
needs_operator = pytest.mark.skipif(
    not can_round(torch.zeros(INPUTS, INPUTS)), reason="no fast operator here"
)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@needs_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 7, 300])
def test_is_near_the_exact_product(outputs: int, bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(outputs)
    scales = torch.logspace(-3, 3, outputs)[:, None]  # each output has a scale of its own
    weight = (torch.randn(outputs, INPUTS) * scales).to(dtype)
    added = torch.randn(outputs, dtype=dtype) if bias else None
    product = RoundedLinear(weight, added)
    for shape in ((INPUTS,), (1, INPUTS), (2, 3, INPUTS), (FEW_ROWS, INPUTS)):
        inputs = torch.randn(shape).to(dtype)
        assert product.takes(inputs)
        found = product(inputs)
        assert (found.shape, found.dtype) == ((*shape[:-1], outputs), dtype)
        exact = inputs.double() @ weight.double().T
        size = inputs.double().norm(dim=-1, keepdim=True) * weight.double().norm(dim=1)
        if added is not None:
            exact, size = exact + added.double(), size + added.double().abs()
        assert ((found - exact).abs() < 0.01 * size).all()
    assert not product.takes(torch.zeros(FEW_ROWS + 1, INPUTS))


@needs_operator
def test_inputs_and_weights_of_any_layout_and_rows_of_zeros() -> None:
    torch.manual_seed(0)
    weight = torch.randn(INPUTS, 2 * INPUTS).T[:INPUTS].contiguous().T.contiguous().T
    weight[3] = 0
    inputs = torch.randn(INPUTS, 4).T
    found = RoundedLinear(weight, None)(inputs)
    assert not found[:, 3].any()
    assert relative_error(found, inputs @ weight.T) < 0.02


def test_which_weights_it_is_for() -> None:
    fits = torch.zeros(256, 256)
    for weight in (
        fits.double(),
        torch.zeros(300, 250),  # the operator would read past the end
        torch.zeros(64, 64),  # too small to gain anything
        torch.zeros(256, 256, device="meta"),
    ):
        assert not can_round(weight)
    assert can_round(fits) == can_round(fits[:128], fits[128:])


class Draft(nn.Module):
    def __init__(self, head: nn.Linear):
        super().__init__()
        self.layer = nn.Linear(INPUTS, INPUTS)
        self.head_rows = HeadRows(head, None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head_rows(self.layer(inputs))


def models() -> tuple[nn.Sequential, Draft]:
    torch.manual_seed(0)
    target = nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, 2 * INPUTS)).requires_grad_(False)
    return target, Draft(target[1]).requires_grad_(False)


@needs_operator
@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1])
def test_a_draft_is_rounded_and_its_target_is_not(rows: int) -> None:
    with torch.inference_mode(False):
        target, draft = models()
    inputs = torch.randn(rows, INPUTS)
    exact = target(inputs), draft(inputs)
    packed = PackedLinears(target, draft)
    packed.refresh()
    with packed.active():
        found = target(inputs), draft(inputs)
    torch.testing.assert_close(found[0], exact[0], rtol=1e-5, atol=1e-5)
    assert 1e-4 < relative_error(found[1], exact[1]) < 0.02
    assert torch.equal(draft(inputs), exact[1])


@needs_operator
def test_a_shared_head_is_neither_copied_nor_packed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = models()
    assert draft.head_rows.weight.data_ptr() == target[1].weight.data_ptr()
    assert not any("head_rows" in name for name in [*dict(draft.named_parameters()), *draft.state_dict()])
    packed = PackedLinears(target, draft)
    packed.refresh()
    group = packing._packed[draft.head_rows][1][0].__closure__
    held = next(
        cell.cell_contents for cell in group or () if isinstance(cell.cell_contents, packing._PackedGroup)
    )
    assert held.packed is None and held.rounded is not None
    runs: list[int] = []
    target[1].register_forward_pre_hook(lambda module, inputs: runs.append(len(inputs[0])))
    with torch.inference_mode(), packed.active():
        for rows in (FEW_ROWS, FEW_ROWS + 1):
            draft.head_rows(torch.randn(rows, INPUTS))
    assert runs == [FEW_ROWS + 1]


@needs_operator
def test_copies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = models()
    rounded = INPUTS * INPUTS + 2 * INPUTS * INPUTS  # a byte per weight
    for limit, expected in ((rounded - 1, False), (rounded, True)):
        monkeypatch.setattr(packing, "_MAX_BYTES", limit)
        packed = PackedLinears(target, draft)
        packed.refresh()
        with packed.active():
            assert ("forward" in vars(draft.layer)) == expected
            assert "forward" not in vars(target[0])  # which takes four bytes per weight


def test_a_head_of_some_rows() -> None:
    linear, tokens = nn.Linear(8, 20), torch.tensor([3, 4, 17])
    rows, whole, inputs = HeadRows(linear, tokens), HeadRows(linear, None), torch.randn(2, 8)
    torch.testing.assert_close(rows(inputs), linear(inputs)[:, tokens])
    assert rows.whole is None and whole.whole is linear
    assert torch.equal(whole(inputs), linear(inputs))
