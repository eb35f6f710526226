"""The loss in chunks equals the plain one: values, gradients of outputs and lm_heads, and rows that are drawn."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.drafts import LossConfig
from clover.train.chunked_loss import RowSampling, chunked_head_loss
from clover.train.losses import head_loss
from tests.train.lm_heads import SCALE, TOKENS, D, H, HeadDraft, V, make_data, text_batch

CONFIGS = [LossConfig(), LossConfig(0.5, 3.0, 0.2, 0.9), LossConfig(1.0, 0.0, 0.5, likely_tokens_only=True)]
Data = tuple[Tensor, Tensor, Tensor, Tensor]


@pytest.fixture
def data() -> Data:
    return make_data()


def compute(
    loss_of: Any, data: Data, config: LossConfig, known: list[int] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the gradient of the outputs and the sums."""
    outputs, hidden, weight, mask = data
    outputs = outputs.detach().requires_grad_()
    draft = HeadDraft(weight, known)
    loss, metrics = loss_of(draft, outputs, hidden, text_batch(mask), config, SCALE)
    return loss.detach(), torch.autograd.grad(loss, outputs)[0], metrics.sums


@pytest.mark.parametrize("chunk", [1, 7 * V * D, 10**6])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("known", [None, [0, 1, 2, 3, 5, 7, 8, 10]])
def test_chunks_give_the_plain_loss(data, config, chunk, known) -> None:
    found = compute(partial(chunked_head_loss, elements=chunk), data, config, known)
    expected = compute(head_loss, data, config, known)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("large", [V + 1, 1])
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_an_lm_head_of_the_draft_gets_the_plain_gradient(data, large: int, factor: float) -> None:
    """Through all rows, and through rows that are drawn, which here are all."""
    outputs, hidden, weight, mask = data
    chunked: Any = partial(chunked_head_loss, sampling=RowSampling(large), elements=7 * V * D)
    gradients = []
    for loss_of in (chunked, head_loss):
        own = torch.randn(D, V, H, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        draft: Any = HeadDraft(weight, own=own.requires_grad_())
        for _ in range(2):  # a second batch adds its gradient
            loss, _ = loss_of(draft, outputs.requires_grad_(), hidden, text_batch(mask), CONFIGS[1], SCALE)
            (factor * loss).backward()
        gradients.append(own.grad)
    assert gradients[0].is_contiguous()  # PyTorch's fused AdamW heeds no strides
    torch.testing.assert_close(*gradients)


def test_the_large_gradient_of_an_lm_head_is_not_copied(data) -> None:
    outputs, hidden, weight, mask = data
    own = torch.randn(D, V, H, dtype=torch.float64).requires_grad_()
    draft: Any = HeadDraft(weight, own=own)
    loss, _ = chunked_head_loss(
        draft, outputs.requires_grad_(), hidden, text_batch(mask), LossConfig(), SCALE
    )
    (made,) = loss.grad_fn.of_heads  # type: ignore[union-attr]
    place = made.data_ptr()
    del made
    loss.backward()
    assert own.grad is not None and own.grad.data_ptr() == place


@pytest.mark.parametrize("copies", [1, 20])
def test_however_long_the_text_few_logits_exist_at_a_time(data, copies: int) -> None:
    """The memory of a step grows with T · H, not with T · V."""
    outputs, hidden, weight, mask = data
    hidden, tokens, mask = (one.repeat(copies, *[1] * (one.dim() - 1)) for one in (hidden, TOKENS, mask))
    draft: Any = HeadDraft(weight)
    outputs = outputs.repeat(1, copies, 1, 1).requires_grad_()
    batch, most = text_batch(mask, tokens), 7 * V * D
    chunked_head_loss(draft, outputs, hidden, batch, LossConfig(), SCALE, elements=most)[0].backward()
    assert max(draft.rows_used) <= 7 * V * D < sum(draft.rows_used)


@pytest.mark.parametrize("config", CONFIGS[:2])
def test_all_rows_drawn_are_the_whole_vocabulary(data, config) -> None:
    found = compute(partial(chunked_head_loss, sampling=RowSampling(large=1)), data, config)
    torch.testing.assert_close(found, compute(head_loss, data, config))


def test_rows_drawn_at_random_stand_for_the_others(data) -> None:
    """In the mean over 300 draws of half of the rows, loss and gradient are nearly those of the whole vocabulary."""
    config = LossConfig(1.0, 0.0, 0.5)
    expected, of_expected, _ = compute(head_loss, data, config)
    few = RowSampling(large=1, likeliest=1, drawn=5)
    by_position: Any = partial(
        chunked_head_loss, sampling=few, elements=1
    )  # no position's rows serve another
    torch.manual_seed(0)
    drawn = [compute(by_position, data, config)[:2] for _ in range(300)]
    loss, of_outputs = (torch.stack(parts).mean(0) for parts in zip(*drawn))
    assert loss.item() == pytest.approx(expected.item(), rel=0.05)
    assert torch.cosine_similarity(of_outputs.flatten(), of_expected.flatten(), dim=0) > 0.99


def test_what_is_measured_uses_the_whole_vocabulary(data) -> None:
    outputs, hidden, weight, mask = data
    draft: Any = HeadDraft(weight)
    given = (draft, outputs, hidden, text_batch(mask), LossConfig(), SCALE)
    with torch.no_grad():
        _, found = chunked_head_loss(*given, sampling=RowSampling(large=1, drawn=1))
        torch.testing.assert_close(found.sums, head_loss(*given)[1].sums)
