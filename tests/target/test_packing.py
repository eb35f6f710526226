"""Packed weights give what the layers give, where they may be used, and leave no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clover.target import packing
from clover.target.packing import PackedLinears

WIDE = 512  # large enough to be worth packing


def layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDE, 2 * WIDE, bias=False), nn.Tanh(), nn.Linear(2 * WIDE, WIDE), nn.Linear(WIDE, 8)
    )
    return model.to(dtype).requires_grad_(False)


def replaced(model: nn.Module) -> list[bool]:
    return ["forward" in vars(layer) for layer in model]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "exact"),
    [(torch.float32, {"rtol": 1e-5, "atol": 1e-5}), (torch.bfloat16, {"rtol": 0.02, "atol": 0.02})],
)
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 33])
def test_gives_what_the_layers_give(dtype: torch.dtype, exact: dict[str, float], rows: int) -> None:
    model = layers(dtype)
    packed = PackedLinears(model)
    packed.refresh()
    for shape in ((rows, WIDE), (2, rows, WIDE)):
        inputs = torch.randn(shape, dtype=dtype)
        expected = model(inputs)
        with torch.inference_mode(), packed.active():
            assert replaced(model) == [True, False, True, False]
            found = model(inputs)
        torch.testing.assert_close(found, expected, **exact)


class Attention(nn.Module):
    """Three layers that read one input, and one that reads another."""

    def __init__(self, bias: bool):
        super().__init__()
        self.q_proj = nn.Linear(WIDE, WIDE, bias=bias)
        self.k_proj, self.v_proj = nn.Linear(WIDE, 64, bias=bias), nn.Linear(WIDE, 32, bias=bias)
        self.o_proj = nn.Linear(WIDE, WIDE, bias=bias)

    def forward(self, inputs: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
        """In the usual order, with another input in between, and in another order."""
        q, k, v, o = self.q_proj, self.k_proj, self.v_proj, self.o_proj
        return [
            q(inputs),
            k(inputs),
            v(inputs),
            o(other),
            q(inputs),
            k(other),
            v(inputs),
            v(other),
            k(inputs),
        ]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_layers_that_read_one_input_run_as_one_product(
    bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Attention(bias).requires_grad_(False)
    packed = PackedLinears(model)
    packed.refresh()
    inputs, other = torch.randn(2, 1, rows, WIDE)
    expected, product = model(inputs, other), packing._PackedGroup.product
    calls: list[int] = []
    monkeypatch.setattr(
        packing._PackedGroup, "product", lambda self, x: calls.append(len(self.sizes)) or product(self, x)
    )
    with torch.inference_mode(), packed.active():
        found = model(inputs, other)
    for value, wanted in zip(found, expected):
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-5)
    assert calls == [
        3,
        1,
        3,
        3,
        3,
        3,
        3,
    ]  # q, k and v at once; o; then whatever follows no call with its input


def test_leaves_no_trace_also_after_an_error() -> None:
    model = layers()
    packed = PackedLinears(model)
    packed.refresh()
    with pytest.raises(RuntimeError), packed.active():
        model(torch.zeros(1, 3))
    assert not any(replaced(model))
    assert model[0].forward.__func__ is nn.Linear.forward


def test_weights_that_changed_are_packed_anew() -> None:
    model, inputs = layers(), torch.randn(3, WIDE)
    packed = PackedLinears(model)
    packed.refresh()
    model[0].weight.mul_(-1)
    model[2].weight.data = torch.randn(WIDE, 2 * WIDE)
    packed.refresh()
    with torch.inference_mode(), packed.active():
        found = model(inputs)
    torch.testing.assert_close(found, model(inputs), rtol=1e-4, atol=1e-4)


def test_layers_of_two_modules_are_taken_once() -> None:
    model = layers()
    packed = PackedLinears(model, nn.Sequential(model[0]))
    packed.refresh()
    with packed.active():
        assert replaced(model) == [True, False, True, False]
    assert not any(replaced(model))


def test_does_nothing_where_packing_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, limit in ((layers(torch.float64), None), (layers(), 2**20)):
        monkeypatch.setattr(packing, "_MAX_BYTES", limit or 2**30)
        packed = PackedLinears(model)
        packed.refresh()
        with packed.active():
            assert not any(replaced(model))


def test_a_forward_that_somebody_else_replaced_is_left_alone() -> None:
    model = layers()
    own = model[0].forward = lambda inputs: inputs.repeat(1, 2)
    packed = PackedLinears(model)
    packed.refresh()
    with packed.active():
        assert model[0].forward is own
    assert model[0].forward is own
