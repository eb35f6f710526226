from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clover.drafts import LossConfig
from clover.train import losses
from clover.train.losses import HeadLosses, LogitHeads, count_positions, head_losses, likely_tokens

D, B, T, H, V = 3, 2, 9, 6, 11
SCALE = 1.7
TOKENS = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(4))


def capped(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """An lm_head with a scale and a soft cap, as Gemma and Cohere have."""
    return lambda hidden: 5.0 * torch.tanh(0.3 * (hidden @ weight.T.to(hidden.dtype)))


def frozen(weight: Tensor) -> LogitHeads:
    """The heads of a draft that has no lm_head of its own."""
    rows = lambda chosen: capped(weight if chosen is None else weight[chosen])  # noqa: E731
    return LogitHeads(capped(weight), lambda outputs, chosen: rows(chosen)(outputs), rows)


@pytest.fixture
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    outputs = 2 * torch.randn(D, B, T, H, dtype=torch.float64)
    mask = torch.rand(B, T) < 0.6
    mask[1, 6:] = False
    return (
        outputs,
        2 * torch.randn(B, T, H, dtype=torch.float64),
        torch.randn(V, H, dtype=torch.float64),
        mask,
    )


def reference(
    outputs: Tensor,
    hidden: Tensor,
    weight: Tensor,
    mask: Tensor,
    config: LossConfig,
    likely: Tensor | None = None,
    known: list[int] | None = None,
) -> tuple[Tensor, list[list[float]]]:
    """The formula, one position at a time; `known` are the tokens that the draft proposes from."""
    total, metrics = torch.zeros((), dtype=torch.float64), []
    known = list(range(V)) if known is None else known
    whole, logits_fn = capped(weight), capped(weight[known])
    for i in range(len(outputs)):
        parts, agreement, available = [], 0.0, 0
        for b in range(B):
            for t in range(T - 2 - i):
                s = t + 1 + i
                available += int(mask[b, s + 1])
                if not mask[b, s + 1] or (likely is not None and not likely[b, t + 1 : s + 1].all()):
                    continue
                o, f = outputs[i, b, t], hidden[b, s]
                says, label, log_probs = (
                    int(whole(f).argmax()),
                    int(TOKENS[b, s + 1]),
                    logits_fn(o).log_softmax(-1),
                )
                soft = -(logits_fn(f).softmax(-1) * log_probs).sum() * (says in known)
                smooth = torch.nn.functional.smooth_l1_loss(o / SCALE, f / SCALE)
                hard = -log_probs[known.index(label)] if label in known else torch.zeros(()).double()
                parts.append(torch.stack((soft, smooth, hard)))
                agreement += float(known[int(log_probs.argmax())] == says)
        sums = torch.stack(parts).sum(0)
        weights = (config.distillation_weight, config.regression_weight, config.label_weight)
        mixed = (torch.tensor(weights, dtype=torch.float64) * sums).sum()
        total = total + config.decay**i * mixed / available
        metrics.append([*sums.tolist(), agreement, len(parts)])
    return total, metrics


def run(
    data: tuple[Tensor, Tensor, Tensor, Tensor], config: LossConfig, likely: Tensor | None = None
) -> HeadLosses:
    outputs, hidden, weight, mask = data
    return head_losses(outputs, hidden, TOKENS, frozen(weight), mask, config, SCALE, likely=likely)


@pytest.mark.parametrize("chunk", [1, 7 * V * D, 10**6])
@pytest.mark.parametrize("config", [LossConfig(), LossConfig(0.5, 3.0, 0.2, 0.9)])
def test_equals_the_slow_reference(
    data, config: LossConfig, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(losses._CHUNK_ELEMENTS, "cpu", chunk)
    outputs = data[0].requires_grad_()
    result = run(data, config)
    (grad,) = torch.autograd.grad(3 * result.total, outputs)
    expected, metrics = reference(*data, config)
    (expected_grad,) = torch.autograd.grad(3 * expected, outputs)
    torch.testing.assert_close(result.total, expected)
    torch.testing.assert_close(grad, expected_grad)
    torch.testing.assert_close(result.metrics.sums.T, torch.tensor(metrics, dtype=torch.float64))
    assert result.metrics.loss(config) == pytest.approx(result.total.item())


@pytest.mark.parametrize("copies", [1, 20])
def test_however_long_the_text_few_logits_exist_at_a_time(
    data, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a step grows with T · H, not with T · V."""
    monkeypatch.setitem(losses._CHUNK_ELEMENTS, "cpu", 7 * V * D)
    outputs, hidden, weight, mask = data
    logits, sizes = capped(weight), []

    def counted(states: torch.Tensor) -> torch.Tensor:
        sizes.append(states.shape[:-1].numel() * V)
        return logits(states)

    outputs = outputs.repeat(1, copies, 1, 1).requires_grad_()
    repeated = (one.repeat(copies, *[1] * (one.dim() - 1)) for one in (hidden, TOKENS, mask))
    hidden, tokens, mask = repeated
    head_losses(
        outputs,
        hidden,
        tokens,
        LogitHeads(counted, lambda states, _: counted(states), lambda _: counted),
        mask,
        LossConfig(),
        SCALE,
    ).backward()
    assert max(sizes) <= 7 * V * D < sum(sizes)


@pytest.mark.parametrize("config", [LossConfig(), LossConfig(0.5, 3.0, 0.2, 0.9)])
def test_a_part_of_the_vocabulary_equals_the_slow_reference(data, config: LossConfig) -> None:
    known = [0, 1, 2, 3, 5, 7, 8, 10]
    outputs, hidden, weight, mask = data
    outputs[0, :, :-1] = (
        hidden[:, 1:] + 0.1 * outputs[0, :, :-1]
    )  # right where the target's best token is known
    outputs.requires_grad_()
    logits_fn = capped(weight[known])
    heads = LogitHeads(
        capped(weight), lambda o, _: logits_fn(o), lambda _: logits_fn, d2t=torch.tensor(known)
    )
    result = head_losses(outputs, hidden, TOKENS, heads, mask, config, SCALE)
    (grad,) = torch.autograd.grad(result.total, outputs)
    expected, metrics = reference(*data, config, known=known)
    (expected_grad,) = torch.autograd.grad(expected, outputs)
    torch.testing.assert_close(result.total, expected)
    torch.testing.assert_close(grad, expected_grad)
    torch.testing.assert_close(result.metrics.sums.T, torch.tensor(metrics, dtype=torch.float64))
    assert 0 < sum(m[3] for m in metrics) < sum(m[4] for m in metrics)


def through_rows(data: tuple[Tensor, Tensor, Tensor, Tensor], config: LossConfig) -> HeadLosses:
    """The loss through a frozen lm_head, whose rows may be looked at in part."""
    outputs, hidden, weight, mask = data
    return head_losses(outputs, hidden, TOKENS, frozen(weight), mask, config, SCALE)


@pytest.mark.parametrize("config", [LossConfig(), LossConfig(0.5, 3.0, 0.2, 0.9)])
def test_all_rows_drawn_are_the_whole_vocabulary(
    data, config: LossConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_LARGE", 1)
    monkeypatch.setattr(losses, "_DRAWN", V)
    outputs = data[0].requires_grad_()
    result, expected = through_rows(data, config), run(data, config)
    torch.testing.assert_close(result.total, expected.total)
    torch.testing.assert_close(result.metrics.sums, expected.metrics.sums)
    found, wanted = (torch.autograd.grad(one.total, outputs)[0] for one in (result, expected))
    torch.testing.assert_close(found, wanted)


def test_rows_drawn_at_random_stand_for_the_others(data, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mean over 300 draws of half of the rows, loss and gradient are nearly those of the whole vocabulary."""
    torch.manual_seed(0)
    outputs, config = data[0].requires_grad_(), LossConfig(1.0, 0.0, 0.5)
    whole = run(data, config)
    (wanted,) = torch.autograd.grad(whole.total, outputs)
    for name, value in (("_LARGE", 1), ("_KEPT_TOP_K", 1), ("_DRAWN", 5)):
        monkeypatch.setattr(losses, name, value)
    monkeypatch.setitem(
        losses._CHUNK_ELEMENTS, "cpu", V * D
    )  # one position's tokens do not stand in for another's
    totals, gradients = [], []
    for _ in range(300):
        result = through_rows(data, config)
        totals.append(result.total.detach())
        gradients.append(torch.autograd.grad(result.total, outputs)[0])
    assert torch.stack(totals).mean().item() == pytest.approx(whole.total.item(), rel=0.05)
    found = torch.stack(gradients).mean(0)
    assert torch.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.99


def test_what_is_measured_has_the_whole_vocabulary(data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_LARGE", 1)
    monkeypatch.setattr(losses, "_DRAWN", 1)
    with torch.no_grad():
        torch.testing.assert_close(
            through_rows(data, LossConfig()).metrics.sums, run(data, LossConfig()).metrics.sums
        )


def test_gradcheck(data) -> None:
    outputs = data[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda o: run((o, *data[1:]), LossConfig()).total, outputs)


@pytest.mark.parametrize("large", [V + 1, 1])
def test_a_lm_head_of_the_draft_itself_gets_its_gradient(
    data, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the whole of it, and through rows that are drawn, which here are all."""
    monkeypatch.setattr(losses, "_LARGE", large)
    monkeypatch.setattr(losses, "_DRAWN", V)
    monkeypatch.setitem(losses._CHUNK_ELEMENTS, "cpu", 7 * V * D)
    outputs, hidden, weight, mask = data
    own = torch.randn(D, V, H, dtype=torch.float64).requires_grad_()
    chosen = lambda of, rows, dim: of if rows is None else of.index_select(dim, rows)  # noqa: E731
    heads = LogitHeads(
        capped(weight),
        lambda o, rows: torch.einsum("...dh,dvh->...dv", o, chosen(own, rows, 1)),
        lambda rows: capped(chosen(weight, rows, 0)),
        (own,),
    )
    config = LossConfig(1.0, 0.0, 0.5)
    head_losses(outputs.requires_grad_(), hidden, TOKENS, heads, mask, config, SCALE).backward()
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(D):
        per_head = LogitHeads(capped(weight), lambda o, _, i=i: o @ own[i].T, lambda _: capped(weight))
        counts = count_positions(mask, D)[i : i + 1]
        at, shifted = hidden[:, i:], outputs[i : i + 1, :, : T - i]
        part = _plain_loss(shifted[0], at, per_head, mask[:, i:], TOKENS[:, i:], config)
        expected = expected + config.decay**i * part / counts
    (expected_grad,) = torch.autograd.grad(expected.sum(), own)
    torch.testing.assert_close(own.grad, expected_grad)
    assert own.grad is not None and own.grad.is_contiguous()  # PyTorch's fused AdamW heeds no strides


def _plain_loss(
    outputs: Tensor, hidden: Tensor, heads: LogitHeads, mask: Tensor, tokens: Tensor, config: LossConfig
) -> Tensor:
    """One head whose outputs at t stand for the state at t + 1, summed over positions, by autograd alone."""
    total = torch.zeros((), dtype=torch.float64)
    for b in range(len(outputs)):
        for t in range(outputs.shape[1] - 2):
            if mask[b, t + 2]:
                log_probs = heads.draft(outputs[b, t], None).log_softmax(-1)
                soft = -(heads.target(hidden[b, t + 1]).softmax(-1) * log_probs).sum()
                total = total + soft - config.label_weight * log_probs[tokens[b, t + 2]]
    return total


def test_likely_tokens_only(data) -> None:
    likely = torch.rand(B, T, generator=torch.Generator().manual_seed(3)) < 0.7
    outputs = data[0].requires_grad_()
    result = run(data, LossConfig(), likely)
    expected, metrics = reference(*data, LossConfig(), likely)
    torch.testing.assert_close(result.total, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, outputs)[0] for x in (result.total, expected)))
    assert result.metrics.sums[4].tolist() == [m[4] for m in metrics]


def test_likely_tokens_are_in_the_top_8_and_the_nucleus(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    hidden, tokens = torch.randn(4, 30, 12), torch.randint(12, (4, 30))
    monkeypatch.setitem(losses._CHUNK_ELEMENTS, "cpu", 50)
    for sharpness in (0.2, 2.0):
        likely = likely_tokens(sharpness * hidden, tokens, lambda x: x)
        for b, t in [(b, t) for b in range(4) for t in range(1, 30)]:
            probs, order = (sharpness * hidden[b, t - 1]).softmax(-1).sort(descending=True)
            rank = order.tolist().index(int(tokens[b, t]))
            assert bool(likely[b, t]) == (rank < 8 and float(probs[:rank].sum()) < 0.8)
        assert likely[:, 0].all() and likely.any() and not likely.all()


def test_batches_with_common_divisors_add_up(data) -> None:
    outputs, hidden, weight, mask = data
    divisors = count_positions(mask, D)
    whole = head_losses(outputs, hidden, TOKENS, frozen(weight), mask, LossConfig(), SCALE)
    halves = [
        head_losses(
            outputs[:, b],
            hidden[b],
            TOKENS[b],
            frozen(weight),
            mask[b],
            LossConfig(),
            SCALE,
            divisors,
        )
        for b in (slice(0, 1), slice(1, 2))
    ]
    torch.testing.assert_close(halves[0].total + halves[1].total, whole.total)
    merged = (halves[0].metrics + halves[1].metrics).means()
    for name, values in whole.metrics.means().items():
        assert merged[name] == pytest.approx(values)


def test_perfect_outputs_agree_everywhere_and_unlearnt_positions_get_no_gradient(data) -> None:
    _, hidden, weight, _ = data
    outputs = torch.stack([hidden.roll(-1 - i, dims=1) for i in range(D)]).requires_grad_()
    mask = torch.zeros(B, T, dtype=torch.bool)
    mask[0, 5] = True
    result = head_losses(outputs, hidden, TOKENS, frozen(weight), mask, LossConfig(), SCALE)
    assert result.metrics.means()["accuracy"] == [1.0] * D
    assert result.metrics.means()["regression"] == [0.0] * D
    noisy = (outputs.detach() + 1).requires_grad_()
    head_losses(noisy, hidden, TOKENS, frozen(weight), mask, LossConfig(), SCALE).backward()
    assert noisy.grad is not None
    touched = noisy.grad.abs().sum(-1).nonzero().tolist()
    assert touched == [[0, 0, 3], [1, 0, 2], [2, 0, 1]]


def test_a_batch_without_learnt_tokens_is_zero(data) -> None:
    outputs, hidden, weight, mask = data
    result = head_losses(
        outputs.requires_grad_(),
        hidden,
        TOKENS,
        frozen(weight),
        mask & False,
        LossConfig(),
        SCALE,
    )
    result.backward()
    assert result.total.item() == 0.0 and not outputs.grad.any()


def test_softmax_is_float32_under_bfloat16_autocast(data) -> None:
    outputs, hidden, weight, mask = (x.float() if x.is_floating_point() else x for x in data)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = head_losses(
            outputs.requires_grad_(), hidden, TOKENS, frozen(weight), mask, LossConfig(), SCALE
        )
    exact = head_losses(outputs, hidden, TOKENS, frozen(weight), mask, LossConfig(), SCALE)
    assert result.total.dtype == torch.float32
    (rough, fine) = (torch.autograd.grad(r.total, outputs)[0] for r in (result, exact))
    torch.testing.assert_close(result.total, exact.total, rtol=1e-2, atol=0)
    torch.testing.assert_close(rough, fine, rtol=0.1, atol=0.02 * float(fine.abs().max()))
