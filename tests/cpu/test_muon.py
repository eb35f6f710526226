"""Muon takes the steps of PyTorch's own, in the dtype that the processor multiplies in."""

import pytest
import torch
from torch import nn

from clover.cpu import muon
from clover.cpu.muon import Muon, orthogonal


def trained(kind: type[torch.optim.Optimizer], **options: object) -> list[torch.Tensor]:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape)) for shape in ((8, 24), (24, 8), (5, 5))]
    without = nn.Parameter(torch.ones(2, 2))
    optimizer = kind([*weights, without], lr=0.1, weight_decay=0.01, **options)
    for _ in range(3):
        for weight in weights:
            weight.grad = weight.detach().sin() + torch.randn_like(weight)
        optimizer.step()
    assert without.equal(torch.ones(2, 2))
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_those_of_pytorch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "_product_dtype", lambda _: dtype)
    found, expected = trained(Muon), trained(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)  # theirs is in bfloat16
        assert ((ours - theirs).abs().max() > 0) == (dtype == torch.float32)


@pytest.mark.parametrize("shape", [(24, 60), (90, 20), (16, 16)])
@pytest.mark.parametrize("rank", [3, 16])
def test_products_of_the_gram_matrix_give_the_same(
    shape: tuple[int, int], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # in the one dtype in which they are used
    monkeypatch.setattr(muon, "_product_dtype", lambda _: torch.float32)
    torch.manual_seed(0)
    matrix = (
        torch.randn(shape[0], rank) @ torch.diag(torch.logspace(0, -5, rank)) @ torch.randn(rank, shape[1])
    )
    wide = (matrix.T if shape[0] > shape[1] else matrix).double()
    expected = muon._iterate(wide / wide.norm())
    found = orthogonal(matrix)
    torch.testing.assert_close(
        found.T if shape[0] > shape[1] else found, expected.float(), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_values_become_nearly_one_and_vectors_stay(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "_product_dtype", lambda _: dtype)
    torch.manual_seed(0)
    matrix = torch.randn(6, 20, dtype=torch.float64)
    found = orthogonal(matrix)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.T @ found @ right.T
    assert found.dtype == matrix.dtype
    assert ((inside.diagonal() > 0.6) & (inside.diagonal() < 1.3)).all()
    assert (inside - inside.diagonal().diag()).abs().max() < 0.05
