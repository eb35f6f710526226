"""The loss against its equation, one position at a time, on lm_heads of 11 tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.drafts import LossConfig
from clover.train import losses
from clover.train.chunked_loss import chunked_head_loss
from clover.train.losses import count_positions, head_loss, likely_tokens, weighted_terms
from tests.train.lm_heads import SCALE, TOKENS, B, D, HeadDraft, T, equation, make_data, text_batch

CONFIGS = [LossConfig(), LossConfig(0.5, 3.0, 0.2, 0.9)]
BOTH = pytest.mark.parametrize("loss_of", [head_loss, chunked_head_loss])


@pytest.fixture
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return make_data()


def run(loss_of: Any, data: Any, config: LossConfig = CONFIGS[0], known: list[int] | None = None) -> Any:
    outputs, hidden, weight, mask = data
    return loss_of(HeadDraft(weight, known), outputs, hidden, text_batch(mask), config, SCALE)


@BOTH
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("known", [None, [0, 1, 2, 3, 5, 7, 8, 10]])
def test_the_loss_is_that_of_the_equation(data, loss_of, config: LossConfig, known) -> None:
    outputs, hidden, *_ = data
    outputs[0, :, :-1] = hidden[:, 1:] + 0.1 * outputs[0, :, :-1]  # often right
    outputs.requires_grad_()
    loss, metrics = run(loss_of, data, config, known)
    expected, sums = equation(*data, config, known=known)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(3 * one, outputs)[0] for one in (loss, expected)))
    torch.testing.assert_close(metrics.sums.T, torch.tensor(sums, dtype=torch.float64))
    assert 0 < sum(head[3] for head in sums) < sum(head[4] for head in sums)
    assert metrics.summary(config)["loss"] == pytest.approx(loss.item())


@BOTH
def test_the_gradient_is_that_of_finite_differences(data, loss_of) -> None:
    outputs = data[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda o: run(loss_of, (o, *data[1:]))[0], outputs)


@BOTH
def test_positions_behind_an_unlikely_token_do_not_count(data, loss_of) -> None:
    outputs, hidden, weight, _ = data
    config = LossConfig(likely_tokens_only=True)
    likely = likely_tokens(HeadDraft(weight), hidden, TOKENS)  # type: ignore[arg-type]
    assert likely.any() and not likely.all()
    outputs.requires_grad_()
    loss, metrics = run(loss_of, data, config)
    expected, sums = equation(*data, config, likely)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(one, outputs)[0] for one in (loss, expected)))
    assert metrics.sums[4].tolist() == [head[4] for head in sums]


def test_likely_tokens_are_in_the_top_8_and_the_nucleus(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    hidden, tokens = torch.randn(4, 30, 12), torch.randint(12, (4, 30))
    draft: Any = SimpleNamespace(target=SimpleNamespace(dtype=torch.float32, logits=lambda states: states))
    monkeypatch.setitem(losses._CHUNK_ELEMENTS, "cpu", 50)
    for sharpness in (0.2, 2.0):
        likely = likely_tokens(draft, sharpness * hidden, tokens)
        for b, t in [(b, t) for b in range(4) for t in range(1, 30)]:
            probs, order = (sharpness * hidden[b, t - 1]).softmax(-1).sort(descending=True)
            rank = order.tolist().index(int(tokens[b, t]))
            assert bool(likely[b, t]) == (rank < 8 and float(probs[:rank].sum()) < 0.8)
        assert likely[:, 0].all() and likely.any() and not likely.all()


@BOTH
def test_batches_with_common_counts_add_up(data, loss_of) -> None:
    outputs, hidden, weight, mask = data
    draft, config, counts = HeadDraft(weight), LossConfig(), count_positions(mask, D)
    whole, metrics = loss_of(draft, outputs, hidden, text_batch(mask), config, SCALE)
    halves = [
        loss_of(draft, outputs[:, b], hidden[b], text_batch(mask[b], TOKENS[b]), config, SCALE, counts)
        for b in (slice(0, 1), slice(1, 2))
    ]
    torch.testing.assert_close(halves[0][0] + halves[1][0], whole)
    merged = (halves[0][1] + halves[1][1]).means()
    for name, values in metrics.means().items():
        assert merged[name] == pytest.approx(values)


@BOTH
def test_perfect_outputs_are_correct_and_unlearnt_positions_get_no_gradient(data, loss_of) -> None:
    _, hidden, weight, _ = data
    outputs = torch.stack([hidden.roll(-1 - i, dims=1) for i in range(D)])
    mask = torch.zeros(B, T, dtype=torch.bool)
    mask[0, 5] = True
    _, metrics = run(loss_of, (outputs, hidden, weight, mask))
    assert metrics.means()["accuracy"] == [1.0] * D
    assert metrics.means()["regression"] == [0.0] * D
    noisy = (outputs + 1).requires_grad_()
    run(loss_of, (noisy, hidden, weight, mask))[0].backward()
    assert noisy.grad is not None
    assert noisy.grad.abs().sum(-1).nonzero().tolist() == [[0, 0, 3], [1, 0, 2], [2, 0, 1]]


@BOTH
def test_a_batch_without_learnt_tokens_is_zero(data, loss_of) -> None:
    outputs, hidden, weight, mask = data
    loss, _ = run(loss_of, (outputs.requires_grad_(), hidden, weight, mask & False))
    loss.backward()
    assert loss.item() == 0.0 and not outputs.grad.any()


def test_a_term_of_weight_0_is_left_out_even_where_it_is_infinite() -> None:
    values = [torch.tensor([value], requires_grad=True) for value in (torch.inf, torch.nan, 2.0)]
    weighted = weighted_terms(values, LossConfig(0.0, 0.0, 0.5))
    weighted.sum().backward()
    assert weighted.tolist() == [1.0]
    assert [value.grad for value in values] == [None, None, torch.tensor([0.5])]


@BOTH
@pytest.mark.parametrize("weights", [(0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_a_loss_of_one_term_is_that_of_the_equation(data, loss_of, weights: tuple[float, ...]) -> None:
    outputs, config = data[0].requires_grad_(), LossConfig(*weights)
    loss, expected = run(loss_of, data, config)[0], equation(*data, config)[0]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(one, outputs)[0] for one in (loss, expected)))


def test_an_lm_head_of_the_draft_gets_no_gradient_from_the_regression(data) -> None:
    outputs, hidden, weight, mask = data
    own = weight.expand(D, -1, -1).clone().requires_grad_()
    draft: Any = HeadDraft(weight, own=own)
    config = LossConfig(0.0, 1.0, 0.0)
    loss, _ = chunked_head_loss(draft, outputs.requires_grad_(), hidden, text_batch(mask), config, SCALE)
    loss.backward()
    assert own.grad is not None and not own.grad.any() and outputs.grad.any()


@BOTH
def test_softmax_is_float32_under_bfloat16_autocast(data, loss_of) -> None:
    outputs, hidden, weight, mask = (x.float() if x.is_floating_point() else x for x in data)
    single = (outputs.requires_grad_(), hidden, weight, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = run(loss_of, single)[0]
    exact = run(loss_of, single)[0]
    assert rough.dtype == torch.float32
    (of_rough, of_exact) = (torch.autograd.grad(loss, outputs)[0] for loss in (rough, exact))
    torch.testing.assert_close(rough, exact, rtol=1e-2, atol=0)
    torch.testing.assert_close(of_rough, of_exact, rtol=0.1, atol=0.02 * float(of_exact.abs().max()))
