"""Fast linear layers give what the plain ones give, in a copy that leaves no trace on the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune

from clover.cpu import apply, linear, shared_copy, speed_up
from clover.cpu.apply import can_speed_up
from clover.cpu.linear import (
    INT8_ROWS,
    FastLinear,
    Int8Linear,
    PackedLinear,
    SharedOutputs,
    can_have_int8,
    can_pack,
    int8_rows,
    linear_of,
)
from clover.cpu.mapped import bytes_in_memory

WIDE = 512  # large enough to be worth packing
needs_int8 = pytest.mark.skipif(not can_have_int8(torch.zeros(WIDE, WIDE)), reason="no such operator here")


def layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDE, 2 * WIDE, bias=False), nn.Tanh(), nn.Linear(2 * WIDE, WIDE), nn.Linear(WIDE, 8)
    )
    return model.to(dtype).requires_grad_(False)


def made_fast(model: nn.Module, int8: bool = False) -> nn.Module:
    fast = shared_copy(model)
    speed_up(fast, int8)
    return fast


def kinds(model: nn.Module) -> list[bool]:
    return [type(layer) is FastLinear for layer in model.children()]


@pytest.mark.parametrize(
    ("dtype", "exact"),
    [(torch.float32, {"rtol": 1e-5, "atol": 1e-5}), (torch.bfloat16, {"rtol": 0.02, "atol": 0.02})],
)
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 33, 300])
def test_packed_weights_give_what_the_layers_give(
    dtype: torch.dtype, exact: dict[str, float], rows: int
) -> None:
    model = layers(dtype)
    fast = made_fast(model)
    packs = dtype == torch.float32 or can_pack(dtype)
    assert kinds(fast) == [packs, False, packs, False]
    for shape in ((rows, WIDE), (2, rows, WIDE)):
        inputs = torch.randn(shape, dtype=dtype)
        with torch.inference_mode():
            found = fast(inputs)
        torch.testing.assert_close(found, model(inputs), **exact)


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
        usual = [q(inputs), k(inputs), v(inputs), o(other)]
        return [*usual, q(inputs), k(other), v(inputs), v(other), k(inputs)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_layers_that_read_one_input_run_as_one_product(
    bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Attention(bias).requires_grad_(False)
    fast, (inputs, other) = made_fast(model), torch.randn(2, 1, rows, WIDE)
    expected, product, widths = model(inputs, other), PackedLinear.__call__, list[int]()
    monkeypatch.setattr(
        PackedLinear, "__call__", lambda self, x: widths.append((y := product(self, x)).shape[-1]) or y
    )
    with torch.inference_mode():
        found = fast(inputs, other)
    for value, wanted in zip(found, expected):
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-5)
    together = WIDE + 64 + 32  # q, k and v at once; o; then whatever follows no call with its input
    assert widths == [together, WIDE, *[together] * 5]


def test_the_model_itself_gradients_and_compilers_have_the_plain_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    model = layers().requires_grad_(True)
    fast, inputs = made_fast(model), torch.randn(3, WIDE)
    monkeypatch.setattr(PackedLinear, "__call__", fail)
    assert kinds(model) == [False] * 4 and all(type(layer) is nn.Linear for layer in (model[0], model[2]))
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters()))
    assert fast.state_dict().keys() == model.state_dict().keys()
    fast(inputs).sum().backward()
    assert model[0].weight.grad is not None
    with torch.no_grad():
        compiled = torch.compile(fast, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(inputs), model(inputs))


def test_layers_stay_where_nothing_can_be_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(made_fast(layers(torch.float64))) == [False] * 4
    model = layers()
    assert can_speed_up(model)
    model[0].forward = lambda inputs: inputs.repeat(1, 2)  # somebody else's
    assert not can_speed_up(model)
    monkeypatch.setattr(apply, "MAX_SECOND_COPY", 2**20)
    assert kinds(made_fast(layers())) == [False] * 4


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="only Linux lists the maps")
def test_mapped_weights_are_packed_at_any_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, file = layers(), tmp_path / "model.safetensors"
    inputs, sizes = torch.randn(3, WIDE), sum(weight.nbytes for weight in model.parameters())
    expected = model(inputs)
    assert bytes_in_memory([*model.parameters(), model[0].weight]) == sizes
    save_file(model.state_dict(), file)
    model.load_state_dict(load_file(file), assign=True)
    monkeypatch.setattr(apply, "MAX_SECOND_COPY", 0)
    assert bytes_in_memory(model.parameters()) == 0 and kinds(made_fast(model)) == [True, False, True, False]
    with torch.inference_mode():
        torch.testing.assert_close(made_fast(model)(inputs), expected)
    model[2].weight = nn.Parameter(model[2].weight.clone(), requires_grad=False)
    assert bytes_in_memory(model.parameters()) == model[2].weight.nbytes
    assert kinds(made_fast(model)) == [False] * 4


def test_a_processor_without_bfloat16_runs_such_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "can_pack", lambda dtype: dtype == torch.float32)
    assert kinds(made_fast(layers(torch.bfloat16))) == [False] * 4
    draft, inputs = made_fast(layers(torch.bfloat16), int8=True), torch.randn(33, WIDE, dtype=torch.bfloat16)
    with torch.inference_mode():
        torch.testing.assert_close(draft(inputs), layers(torch.bfloat16)(inputs))


@needs_int8
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 7, 300])
def test_int8_weights_are_near_the_exact_ones(outputs: int, bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(outputs)
    scales = torch.logspace(-3, 3, outputs)[:, None]  # each output has a scale of its own
    weight = (torch.randn(outputs, WIDE) * scales).to(dtype)
    weight[outputs // 2] = 0
    added = torch.randn(outputs, dtype=dtype) if bias else None
    product = Int8Linear(weight, added)
    for shape in ((WIDE,), (1, WIDE), (2, 3, WIDE), (INT8_ROWS, WIDE)):
        inputs = torch.randn(shape).to(dtype)
        found = product(inputs)
        assert (found.shape, found.dtype) == ((*shape[:-1], outputs), dtype)
        exact = inputs.double() @ weight.double().T
        size = inputs.double().norm(dim=-1, keepdim=True) * weight.double().norm(dim=1) + 1e-30
        if added is not None:
            exact, size = exact + added.double(), size + added.double().abs()
        assert ((found - exact).abs() < 0.01 * size).all()


@needs_int8
def test_few_rows_take_int8_weights_and_many_packed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    for kind in (Int8Linear, PackedLinear):
        run = kind.__call__
        monkeypatch.setattr(kind, "__call__", lambda s, x, k=kind, r=run: used.append(k.__name__) or r(s, x))
    fast = made_fast(layers(), int8=True)
    with torch.inference_mode():
        for rows in (1, int8_rows(packed=True), int8_rows(packed=True) + 1):
            fast(torch.randn(rows, WIDE))
    assert used == ["Int8Linear"] * 4 + ["PackedLinear"] * 2


@torch.inference_mode()
def test_rows_of_a_layer_may_have_int8_weights() -> None:
    with torch.inference_mode(False):
        torch.manual_seed(0)
        layer, rows = nn.Linear(WIDE, 1000), torch.tensor([2, 30, 999, *range(100, 400)])
        hidden, part = torch.randn(3, WIDE), linear_of(layer.weight[rows], layer.bias[rows])
    expected = layer(hidden)[:, rows]
    torch.testing.assert_close(part(hidden), expected)
    found = linear.int8_linear(part)(hidden)
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_layers_of_one_input_get_their_own_outputs_though_another_thread_comes_between() -> None:
    shared, inputs, others = SharedOutputs([2, 3]), torch.ones(1, 5), torch.zeros(1, 5)

    def run(rows: torch.Tensor) -> torch.Tensor:
        shared.part(others, 0, lambda _: others - 1)
        return rows + torch.arange(5)

    first, second = (shared.part(inputs, index, run) for index in range(2))
    assert first.tolist() == [[1, 2]] and second.tolist() == [[3, 4, 5]]
    assert shared.part(others, 1, lambda rows: rows + 8).tolist() == [[8, 8, 8]]  # nothing was kept


def test_weights_that_a_hook_makes_of_others_are_shared() -> None:
    layer = nn.Linear(8, 8)
    prune.l1_unstructured(layer, "weight", 0.5)
    copied, inputs = shared_copy(nn.Sequential(layer)), torch.randn(2, 8)
    assert copied[0].weight_orig is layer.weight_orig
    with torch.no_grad():
        layer.weight_orig.mul_(2)
        assert torch.equal(copied(inputs), layer(inputs))
