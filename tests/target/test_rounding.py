"""Products with rounded weights: how far off they may be, and which weights they are for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clover.target import packing
from clover.target.packing import PackedLinears
from clover.target.rounding import FEW_ROWS, RoundedLinear, can_round, rounding
from clover.target.rows import HeadRows, WholeHead

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
        with rounding(True):
            assert product.takes(inputs)
            with rounding(False):
                assert not product.takes(inputs)
        found = product(inputs)
        assert (found.shape, found.dtype) == ((*shape[:-1], outputs), dtype)
        exact = inputs.double() @ weight.double().T
        size = inputs.double().norm(dim=-1, keepdim=True) * weight.double().norm(dim=1)
        if added is not None:
            exact, size = exact + added.double(), size + added.double().abs()
        assert ((found - exact).abs() < 0.01 * size).all()
    with rounding(True):
        assert not product.takes(torch.zeros(FEW_ROWS + 1, INPUTS))
        assert not product.takes(torch.zeros(0, INPUTS))


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
        self.head_rows = WholeHead(head)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head_rows(self.layer(inputs))


def models() -> tuple[nn.Sequential, Draft]:
    torch.manual_seed(0)
    target = nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, 2 * INPUTS)).requires_grad_(False)
    return target, Draft(target[1]).requires_grad_(False)


@needs_operator
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1])
def test_a_draft_is_rounded_and_its_target_is_not(rows: int) -> None:
    target, draft = models()
    inputs = torch.randn(rows, INPUTS)
    exact = target(inputs), draft(inputs)
    for rounded in (True, False):
        packed = PackedLinears(target, draft, rounded)
        packed.refresh()
        with torch.inference_mode(), packed.active():
            found = target(inputs), draft(inputs)
        torch.testing.assert_close(found[0], exact[0], rtol=1e-5, atol=1e-5)
        narrow = rounded and (rows <= FEW_ROWS or torch.cpu._is_avx512_bf16_supported())
        error = relative_error(found[1], exact[1])
        assert 1e-4 < error < 0.02 if narrow else error < 1e-5
        assert torch.equal(draft(inputs), exact[1])


@needs_operator
def test_what_a_draft_shares_with_its_target_is_not_rounded() -> None:
    target, _ = models()
    inputs = torch.randn(2, INPUTS)
    exact = target(inputs)
    packed = PackedLinears(target, nn.Sequential(target[1]))
    packed.refresh()
    with torch.inference_mode(), packed.active():
        torch.testing.assert_close(target(inputs), exact, rtol=1e-5, atol=1e-5)


@needs_operator
def test_a_shared_head_runs_as_the_target_s_own_where_rows_are_many() -> None:
    target, draft = models()
    assert draft.head_rows.weight is target[1].weight
    assert not any("head_rows" in name for name in [*dict(draft.named_parameters()), *draft.state_dict()])
    packed, runs = PackedLinears(target, draft), list[int]()
    packed.refresh()
    target[1].register_forward_pre_hook(lambda module, inputs: runs.append(len(inputs[0])))
    with torch.inference_mode(), packed.active():
        for rows in (FEW_ROWS, FEW_ROWS + 1):
            draft.head_rows(torch.randn(rows, INPUTS))
    assert runs == [FEW_ROWS + 1]


@needs_operator
def test_weights_that_changed_are_rounded_anew_and_replaced_heads_left_alone() -> None:
    target, draft = models()
    inputs = torch.randn(2, INPUTS)
    packed = PackedLinears(target, draft)
    for weight in (torch.randn(2 * INPUTS, INPUTS), torch.randn(2 * INPUTS, INPUTS)):
        target[1].weight.data = weight
        packed.refresh()
        with torch.inference_mode(), packed.active():
            assert relative_error(draft(inputs), target[1](draft.layer(inputs))) < 0.02
    target[1].forward = lambda hidden: hidden  # type: ignore[method-assign]
    packed = PackedLinears(target, draft)
    packed.refresh()
    with packed.active():
        assert "forward" not in vars(draft.head_rows)


@needs_operator
def test_copies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = models()
    layer, head = INPUTS * INPUTS, 2 * INPUTS * INPUTS  # bytes, at one per weight
    exact = 4 * (layer + head + layer + head)
    for share, expected in (
        (1, (True, True)),
        (exact // (layer + 1), (True, False)),
        (exact, (False, False)),
    ):
        monkeypatch.setattr(packing, "_MAX_BYTES", 0)  # nothing is packed
        monkeypatch.setattr(packing, "_SHARE", share)
        packed = PackedLinears(target, draft)
        packed.refresh()
        with packed.active():
            assert ("forward" in vars(draft.layer), "forward" in vars(draft.head_rows)) == expected
            assert "forward" not in vars(target[0])


def test_some_rows_of_a_head_and_all() -> None:
    linear, tokens = nn.Linear(8, 20), torch.tensor([3, 4, 17])
    rows, whole, inputs = HeadRows(linear, tokens), WholeHead(linear), torch.randn(2, 8)
    torch.testing.assert_close(rows(inputs), linear(inputs)[:, tokens])
    assert whole.linear is linear and whole.bias is linear.bias
    assert torch.equal(whole(inputs), linear(inputs))
