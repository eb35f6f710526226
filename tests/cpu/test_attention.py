"""Attention of few tokens against SDPA with keys and values repeated for every query head, the slow reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from clover.cpu.attention import OfLastMask, attend
from clover.target import TargetModel
from tests.families import tiny_model

CASES = [(3, 6, 2, 1), (1, 6, 2, 1), (2, 6, 2, 5), (2, 4, 4, 1), (1, 4, 4, 3), (2, 5, 1, 90)]


def made(shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    batch, queries, groups, rows = shape
    torch.manual_seed(sum(shape))
    query = torch.randn(batch, queries, rows, 8, dtype=dtype)
    key, value = torch.randn(2, batch, groups, 40, 8, dtype=dtype)
    return query, key, value


def reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Head by head, in float64."""
    groups, heads = query.shape[1] // key.shape[1], []
    for head in range(query.shape[1]):
        scores = query[:, head].double() @ key[:, head // groups].double().transpose(-1, -2)
        scores *= query.shape[-1] ** -0.5 if scale is None else scale
        if mask is not None:
            scores = (
                scores.masked_fill(~mask[:, 0], float("-inf"))
                if mask.dtype == torch.bool
                else scores + mask[:, 0]
            )
        heads.append(scores.softmax(-1) @ value[:, head // groups].double())
    return torch.stack(heads, dim=1)


@pytest.mark.parametrize("shape", CASES)
@pytest.mark.parametrize("kind", ["none", "bool", "added", "one row"])
@pytest.mark.parametrize("scale", [None, 0.3])
@torch.no_grad()
def test_every_head_gets_what_it_asks_for(
    shape: tuple[int, int, int, int], kind: str, scale: float | None
) -> None:
    query, key, value = made(shape, torch.float64)
    mask = torch.rand(shape[0], 1, 1 if kind == "one row" else shape[3], 40) > 0.3
    given = {"none": None, "added": torch.where(mask, 0.0, float("-inf")).double()}.get(kind, mask)
    found = attend(query, key, value, given, scale)
    assert found.shape == query.shape
    torch.testing.assert_close(found, reference(query, key, value, given, scale), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_rows_in_bfloat16_are_as_exact_as_those_of_sdpa() -> None:
    for shape in CASES:
        query, key, value = made(shape, torch.bfloat16)
        exact, groups = reference(query, key, value, None, None), shape[1] // shape[2]
        repeated = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        errors = [
            (found.double() - exact).square().mean()
            for found in (attend(query, key, value, None), scaled_dot_product_attention(query, *repeated))
        ]
        assert errors[0] <= 1.5 * errors[1] + 1e-9


def test_gradients_go_through_the_plain_kernel() -> None:
    query, key, value = made((2, 6, 2, 1), torch.float64)
    query.requires_grad_()
    attend(query, key, value, None).sum().backward()
    assert query.grad is not None and query.grad.abs().sum() > 0


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "opt", "gemma"])
def test_the_user_s_model_attends_as_before(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(family)
    target = TargetModel(model)
    assert model.config._attn_implementation == "sdpa"
    calls, name = [], target.base.config._attn_implementation
    real = AttentionInterface._global_mapping[name]
    assert name != "sdpa"
    monkeypatch.setitem(
        AttentionInterface._global_mapping, name, lambda *a, **k: calls.append(1) or real(*a, **k)
    )
    cache = target.new_cache(1, 4)
    cache.begin(1)
    target.forward(torch.tensor([[5]]), cache.positions(1), cache)
    assert len(calls) == target.num_layers
    calls.clear()
    with torch.no_grad():
        model(torch.tensor([[5]]))
    assert not calls


def test_what_was_made_of_a_mask_is_its_own_though_another_thread_comes_between() -> None:
    """The other thread's call stands inside the first one's work, which is where it would do harm."""
    last, mask, other = OfLastMask(), torch.ones(2, 2), torch.zeros(2, 2)

    def make() -> Tensor:
        last.get(other, 1, lambda: other + 5)
        return mask + 1

    assert torch.equal(last.get(mask, 1, make), mask + 1)
    assert torch.equal(last.get(mask, 1, lambda: mask + 9), mask + 1)
    assert torch.equal(last.get(mask, 2, lambda: mask + 9), mask + 9)
    assert torch.equal(last.get(other, 2, lambda: other + 7), other + 7)
