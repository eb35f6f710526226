"""Muon takes the steps of PyTorch's own, in the dtype that the processor multiplies in."""

import pytest
import torch
from torch import nn

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
def test_steps_are_those_of_pytorch(dtype: torch.dtype) -> None:
    found, expected = trained(Muon, dtype=dtype), trained(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)  # theirs is in bfloat16
        assert ((ours - theirs).abs().max() > 0) == (dtype == torch.float32)


def iterate(matrix: torch.Tensor) -> torch.Tensor:
    """Return Newton-Schulz's iteration of a matrix, written out, in float64."""
    found = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = found @ found.T
        found = 3.4445 * found + (-4.7750 * gram + 2.0315 * gram @ gram) @ found
    return found


@pytest.mark.parametrize("shape", [(24, 60), (90, 20), (16, 16)])
@pytest.mark.parametrize("rank", [3, 16])
def test_products_of_the_gram_matrix_give_the_same(shape: tuple[int, int], rank: int) -> None:
    torch.manual_seed(0)
    decay = torch.diag(torch.logspace(0, -5, rank))
    matrix = torch.randn(shape[0], rank) @ decay @ torch.randn(rank, shape[1])
    found = orthogonal(matrix, torch.float32)
    torch.testing.assert_close(found, iterate(matrix).float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_values_become_nearly_one_and_vectors_stay(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(6, 20, dtype=torch.float64)
    found = orthogonal(matrix, dtype)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.T @ found @ right.T
    assert found.dtype == matrix.dtype
    assert ((inside.diagonal() > 0.6) & (inside.diagonal() < 1.3)).all()
    assert (inside - inside.diagonal().diag()).abs().max() < 0.05
