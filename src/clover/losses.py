"""The training loss of a draft's heads (Clover-2, arXiv 2408.00264, §3; Clover's loss mask option).

Head i at position t is compared with the target at position s = t + 1 + i, which says token s + 1:

    Σ_i decay^i · mean over s of [ distillation_weight · softCE(softmax(W f_s), W o^i_t)
                                   + regression_weight · SmoothL1((o^i_t − f_s) / scale) ]

SmoothL1 has its corner at 1 and is averaged over H. The paper takes it of the raw difference; here `scale`, the
standard deviation of the target's hidden states, makes it independent of how large a model's hidden states are.

The vocabulary is large, so logits are made for a few positions at a time. Since the lm_head is frozen, the gradient
with respect to o is ready in the same moment, and is all that is kept for the backward pass.

Shapes: D heads, B texts, T tokens, R positions that count, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LogitsFn = Callable[[Tensor], Tensor]  # hidden states after the final norm [..., H] -> logits [..., V]

_CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}  # logits of all heads that exist at one time
_LIKELY_TOP_K, _LIKELY_TOP_P = 8, 0.8


@dataclass(frozen=True)
class LossConfig:
    """Weights of the loss.

    Args:
        distillation_weight: of the soft cross-entropy.
        regression_weight: of the relative SmoothL1.
        decay: weight of each head relative to the one before.
        likely_tokens_only: leave out positions where a token the head is forced with is not one the target might
            have emitted (its top 8 within a nucleus of 0.8); they still count in the mean, as zero.
    """

    distillation_weight: float = 1.0
    regression_weight: float = 0.0
    decay: float = 0.7
    likely_tokens_only: bool = False


@dataclass(frozen=True)
class HeadMetrics:
    """Sums over positions, per head, each [D] and detached; `a + b` merges two batches."""

    distillation: Tensor
    regression: Tensor
    agreement: Tensor  # positions where the head's best token is the target's
    positions: Tensor

    def __add__(self, other: HeadMetrics) -> HeadMetrics:
        return HeadMetrics(*(a + b for a, b in zip(self._sums(), other._sums(), strict=True)))

    def means(self) -> dict[str, list[float]]:
        """Per head: `distillation` (nats), `regression` (of the relative difference), `accuracy` (0 … 1)."""
        distillation, regression, agreement, positions = (sums.double().cpu() for sums in self._sums())
        count = positions.clamp_min(1)
        return {
            "distillation": (distillation / count).tolist(),
            "regression": (regression / count).tolist(),
            "accuracy": (agreement / count).tolist(),
        }

    def _sums(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.distillation, self.regression, self.agreement, self.positions


@dataclass(frozen=True)
class HeadLosses:
    """`total` [] float32, to call backward on, and the metrics of the batch."""

    total: Tensor
    metrics: HeadMetrics


@dataclass(frozen=True)
class _Positions:
    """Which output is compared with which state: indices into B · T and a 0/1 weight per pair."""

    target_rows: Tensor  # Long [R]
    output_rows: Tensor  # Long [R, D]
    counted: Tensor  # Bool [R, D]


@dataclass(frozen=True)
class _Problem:
    hidden_target: Tensor  # [B · T, H]
    positions: _Positions
    head_weights: Tensor  # [D], decay divided by the number of positions of the mean
    logits_fn: LogitsFn
    config: LossConfig
    scale: float


def head_losses(
    outputs: Tensor,
    hidden_target: Tensor,
    logits_fn: LogitsFn,
    predicted_mask: Tensor,
    config: LossConfig,
    scale: float,
    divisors: Tensor | None = None,
    likely: Tensor | None = None,
) -> HeadLosses:
    """The loss of all heads over a batch of texts.

    Args:
        outputs: [D, B, T, H] of `DraftModel.train_outputs`; gets the gradient.
        hidden_target: [B, T, H] the target's hidden states after its final norm.
        logits_fn: the target's lm_head with its scale and cap, `TargetModel.logits`. Softmax is done in float32.
        predicted_mask: Bool [B, T], tokens that are learnt; False on padding.
        scale: standard deviation of the target's hidden states (`features.hidden_scale`).
        divisors: [D], number of positions that each head's mean is over; by default those of this batch. With
            gradient accumulation, `count_positions` summed over the batches of a step.
        likely: Bool [B, T] of `likely_tokens`, if positions with unlikely forced tokens are left out.
    """
    depth = outputs.shape[0]
    positions = _find_positions(predicted_mask, likely, depth)
    counts = count_positions(predicted_mask, depth) if divisors is None else divisors.to(outputs.device)
    weights = config.decay ** torch.arange(depth, device=outputs.device) / counts.clamp_min(1)
    hidden = hidden_target.detach().flatten(0, 1)
    problem = _Problem(hidden, positions, weights, logits_fn, config, scale)
    total, distillation, regression, agreement = cast(Any, _ChunkedLoss.apply(outputs, problem))
    return HeadLosses(total, HeadMetrics(distillation, regression, agreement, positions.counted.sum(0)))


def count_positions(predicted_mask: Tensor, depth: int) -> Tensor:
    """Long [D]: how many positions of a batch each of `depth` heads learns from (predicted_mask Bool [B, T])."""
    return torch.stack([predicted_mask[:, 2 + head :].sum() for head in range(depth)])


@torch.no_grad()
def likely_tokens(hidden_target: Tensor, tokens: Tensor, logits_fn: LogitsFn) -> Tensor:
    """Bool [B, T]: tokens [B, T] that the target itself might have emitted there: top 8 and within a nucleus of 0.8.

    The first token of a text counts as likely. Source: the authors' loss mask option.
    """
    likely = torch.ones(tokens.shape, dtype=torch.bool, device=tokens.device)
    hidden, following = hidden_target[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    parts = []
    for chunk, label in zip(
        *(x.split(_chunk_rows(logits_fn, hidden, 1)) for x in (hidden, following)), strict=True
    ):
        probs = _at_least_float32(logits_fn(chunk)).softmax(-1)
        better = probs > probs.gather(-1, label[:, None])
        mass_above = (probs * better).sum(-1)
        parts.append((better.sum(-1) < _LIKELY_TOP_K) & (mass_above < _LIKELY_TOP_P))
    likely[:, 1:] = torch.cat(parts).view(len(tokens), -1)
    return likely


def _find_positions(predicted_mask: Tensor, likely: Tensor | None, depth: int) -> _Positions:
    """Every s (1 <= s) whose next token is learnt; head i reads it at t = s − 1 − i, if that is in the text."""
    learnt = predicted_mask.clone()
    learnt[:, :2] = False
    rows, following = learnt.nonzero(as_tuple=True)
    target = following - 1
    output = target[:, None] - 1 - torch.arange(depth, device=target.device)
    counted = output >= 0
    if likely is not None:
        forced = torch.stack([likely[rows, (target - head).clamp_min(0)] for head in range(depth)], dim=1)
        counted &= forced.cumprod(1).bool()
    first = rows * predicted_mask.shape[1]
    return _Positions(first + target, first[:, None] + output.clamp_min(0), counted)


class _ChunkedLoss(torch.autograd.Function):
    """Value and gradient in one pass over chunks of positions; logits are never kept."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, problem: _Problem) -> tuple[Tensor, ...]:
        depth = outputs.shape[0]
        flat = outputs.detach().flatten(1, 2)
        gradient = torch.zeros_like(flat) if ctx.needs_input_grad[0] else None
        sums = torch.zeros(3, depth, dtype=_wide(outputs.dtype), device=outputs.device)
        rows = problem.positions.target_rows
        size = _chunk_rows(problem.logits_fn, problem.hidden_target, depth)
        for part in torch.arange(len(rows), device=rows.device).split(size):
            sums += _chunk(flat, problem, part, gradient)
        config = problem.config
        mixed = config.distillation_weight * sums[0] + config.regression_weight * sums[1]
        ctx.gradient = None if gradient is None else gradient.view_as(outputs)
        total = (problem.head_weights.to(mixed.dtype) * mixed).sum()
        ctx.mark_non_differentiable(*(metrics := sums.unbind()))
        return total, *metrics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, /, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.gradient * grads[0].to(ctx.gradient.dtype), None


def _chunk(flat: Tensor, problem: _Problem, part: Tensor, gradient: Tensor | None) -> Tensor:
    """Sums [3, D] over the positions `part`; adds the gradient with respect to flat [D, B · T, H] to `gradient`."""
    positions, config = problem.positions, problem.config
    heads = torch.arange(len(flat), device=flat.device)
    rows, counted = positions.output_rows[part], positions.counted[part].to(_wide(flat.dtype))
    states = flat[heads, rows]
    target = problem.hidden_target[positions.target_rows[part]]
    distillation, agreement, grad_states = _distil(
        states, target, counted, problem.logits_fn, gradient is not None
    )
    regression, grad_regression = _regress(states, target, problem.scale)
    if gradient is not None:
        grad = config.distillation_weight * grad_states + config.regression_weight * grad_regression
        grad = grad * (counted * problem.head_weights.to(grad.dtype))[..., None]
        gradient.index_put_((heads, rows), grad.to(gradient.dtype), accumulate=True)
    return torch.stack([(value * counted).sum(0) for value in (distillation, regression, agreement)])


def _distil(
    states: Tensor, target: Tensor, counted: Tensor, logits_fn: LogitsFn, differentiate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Soft cross-entropy [r, D], top-1 agreement [r, D] and the gradient [r, D, H] of the former's sum.

    The gradient at the logits is known, softmax(W o) − softmax(W f); autograd carries it through `logits_fn`.
    """
    with torch.set_grad_enabled(differentiate):
        states = states.requires_grad_(differentiate)
        logits = logits_fn(states)
    wide, target_logits = _at_least_float32(logits.detach()), _at_least_float32(logits_fn(target))
    agreement = (wide.argmax(-1) == target_logits.argmax(-1, keepdim=True)).to(counted.dtype)
    target_probs = target_logits.softmax(-1)
    log_probs = wide.log_softmax(-1)
    distillation = -(log_probs @ target_probs[..., None])[..., 0]
    if not differentiate:
        return distillation, agreement, torch.zeros_like(states)
    grad_logits = log_probs.exp_().sub_(target_probs[:, None]).to(logits.dtype)
    (grad_states,) = torch.autograd.grad(logits, states, grad_logits)
    return distillation, agreement, _at_least_float32(grad_states)


def _regress(states: Tensor, target: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Relative SmoothL1 [r, D], averaged over H, and its gradient [r, D, H]."""
    difference = (_at_least_float32(states.detach()) - _at_least_float32(target)[:, None]) / scale
    inside = difference.clamp(-1, 1)
    value = (inside * (difference - 0.5 * inside)).mean(-1)
    return value, inside / (scale * states.shape[-1])


def _chunk_rows(logits_fn: LogitsFn, hidden: Tensor, depth: int) -> int:
    vocabulary = logits_fn(hidden[:1]).shape[-1]
    elements = _CHUNK_ELEMENTS.get(hidden.device.type, _CHUNK_ELEMENTS["cuda"])
    return max(1, elements // (vocabulary * depth))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(_wide(values.dtype))
