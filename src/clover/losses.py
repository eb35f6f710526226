"""The training loss of a draft's heads (Clover-2, arXiv 2408.00264, §3; Clover's loss mask option).

Other systems differ in the weights alone (`DraftModel.paper_loss`).

Head i at position t is compared with the target at position s = t + 1 + i, which says token s + 1:

    Σ_i decay^i · mean over s of [ distillation_weight · softCE(softmax(W f_s), W o^i_t)
                                   + label_weight · CE(token s + 1, W o^i_t)
                                   + regression_weight · SmoothL1((o^i_t − f_s) / scale) ]

SmoothL1 has its corner at 1 and is averaged over H. The paper takes it of the raw difference, scale = 1; if
`LossConfig.relative`, `scale` is the standard deviation of the target's hidden states, and the loss does not depend on
how large a model's hidden states are.

A draft that proposes from a part of the vocabulary (`LogitHeads.d2t`) is compared over that part: the target's
distribution is restricted to it and normalised anew. Where the target's best token (for the label term: the text's
token) is not in it, there is nothing to learn; the position still counts in the mean, and its agreement is 0 (EAGLE-3,
2503.01840).

The vocabulary is large, so logits are made for a few positions at a time. The gradient with respect to o, and to the
draft's own lm_head where it has one, is ready in the same moment, and is all that is kept for the backward pass.

Shapes: D heads, B texts, T tokens, R positions that count, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from clover.drafts import LossConfig
from clover.drafts.vocabulary import draft_indices

LogitsFn = Callable[[Tensor], Tensor]  # hidden states after the final norm [..., H] -> logits [..., V]

_CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}  # logits of all heads that exist at one time
_LIKELY_TOP_K, _LIKELY_TOP_P = 8, 0.8
__all__ = [
    "HeadLosses",
    "HeadMetrics",
    "LogitHeads",
    "LossConfig",
    "count_positions",
    "head_losses",
    "likely_tokens",
]


@dataclass(frozen=True)
class HeadMetrics:
    """Sums over positions, per head, each [D] and detached; `a + b` merges two batches."""

    distillation: Tensor
    regression: Tensor
    label: Tensor
    agreement: Tensor  # positions where the head's best token is the target's
    positions: Tensor

    def __add__(self, other: HeadMetrics) -> HeadMetrics:
        return HeadMetrics(*(a + b for a, b in zip(self._sums(), other._sums(), strict=True)))

    def means(self) -> dict[str, list[float]]:
        """Per head: `distillation`, `label` (nats), `regression` (relative difference), `accuracy` (0 … 1)."""
        distillation, regression, label, agreement, positions = (s.double().cpu() for s in self._sums())
        count = positions.clamp_min(1)
        return {
            "distillation": (distillation / count).tolist(),
            "regression": (regression / count).tolist(),
            "label": (label / count).tolist(),
            "accuracy": (agreement / count).tolist(),
        }

    def _sums(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.distillation, self.regression, self.label, self.agreement, self.positions


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
class LogitHeads:
    """How hidden states become logits.

    Args:
        target: the target's lm_head with its scale and cap, `TargetModel.logits`. Softmax is done in float32.
        draft: outputs [..., D, H] to logits [..., D, V], `DraftModel.train_logits`; the target's if None.
        parameters: what `draft` can train.
        d2t: Long [V'], the tokens that the draft's logits [..., D, V'] are of, rising; None for the whole vocabulary.
    """

    target: LogitsFn
    draft: LogitsFn | None = None
    parameters: tuple[nn.Parameter, ...] = ()
    d2t: Tensor | None = None


@dataclass(frozen=True)
class _Problem:
    hidden_target: Tensor  # [B · T, H]
    tokens: Tensor  # Long [B · T]
    positions: _Positions
    head_weights: Tensor  # [D], decay divided by the number of positions of the mean
    logit_heads: LogitHeads
    config: LossConfig
    scale: float


def head_losses(
    outputs: Tensor,
    hidden_target: Tensor,
    tokens: Tensor,
    heads: LogitHeads,
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
        tokens: Long [B, T] the texts.
        heads: the lm_heads of target and draft.
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
    hidden, unit = hidden_target.detach().flatten(0, 1), scale if config.relative else 1.0
    problem = _Problem(hidden, tokens.flatten(), positions, weights, heads, config, unit)
    total, *sums = cast(Any, _ChunkedLoss.apply(outputs, problem, *heads.parameters))
    distillation, regression, label, agreement = sums
    counted = positions.counted.sum(0)
    return HeadLosses(total, HeadMetrics(distillation, regression, label, agreement, counted))


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
    def forward(ctx: Any, outputs: Tensor, problem: _Problem, *parameters: Tensor) -> tuple[Tensor, ...]:
        depth = outputs.shape[0]
        flat = outputs.detach().flatten(1, 2)
        gradients = None
        if ctx.needs_input_grad[0]:
            gradients = [torch.zeros_like(flat), *(torch.zeros_like(p) for p in parameters)]
        sums = torch.zeros(4, depth, dtype=_wide(outputs.dtype), device=outputs.device)
        rows = problem.positions.target_rows
        size = _chunk_rows(problem.logit_heads.target, problem.hidden_target, depth)
        for part in torch.arange(len(rows), device=rows.device).split(size):
            sums += _chunk(flat, problem, part, gradients)
        config = problem.config
        mixed = (
            config.distillation_weight * sums[0]
            + config.regression_weight * sums[1]
            + config.label_weight * sums[2]
        )
        if gradients is not None:
            gradients[0] = gradients[0].view_as(outputs)
        ctx.gradients = gradients
        total = (problem.head_weights.to(mixed.dtype) * mixed).sum()
        ctx.mark_non_differentiable(*(metrics := sums.unbind()))
        return total, *metrics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, /, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        outputs, *parameters = (gradient * grads[0].to(gradient.dtype) for gradient in ctx.gradients)
        return outputs, None, *parameters


def _chunk(flat: Tensor, problem: _Problem, part: Tensor, gradients: list[Tensor] | None) -> Tensor:
    """Sums [4, D] over the positions `part`.

    Adds the gradients with respect to flat [D, B · T, H] and to the draft's own lm_head to `gradients`.
    """
    positions, config = problem.positions, problem.config
    heads = torch.arange(len(flat), device=flat.device)
    rows, counted = positions.output_rows[part], positions.counted[part].to(_wide(flat.dtype))
    states = flat[heads, rows].requires_grad_(gradients is not None)
    target = problem.hidden_target[positions.target_rows[part]]
    with torch.set_grad_enabled(gradients is not None):
        logits = (problem.logit_heads.draft or problem.logit_heads.target)(states)
    weights = counted * problem.head_weights.to(counted.dtype)
    labels = problem.tokens[positions.target_rows[part] + 1]
    wanted = _wanted(_at_least_float32(problem.logit_heads.target(target)), labels, problem.logit_heads.d2t)
    distillation, label, agreement, grad_logits = _imitate(
        logits.detach(), wanted, weights if gradients is not None else None, config
    )
    regression, grad_regression = _regress(states, target, problem.scale)
    if gradients is not None:
        grad, *grad_parameters = torch.autograd.grad(
            logits, (states, *problem.logit_heads.parameters), grad_logits.to(logits.dtype)
        )
        grad = _at_least_float32(grad) + config.regression_weight * grad_regression * weights[..., None]
        gradients[0].index_put_((heads, rows), grad.to(flat.dtype), accumulate=True)
        for total, part_of_it in zip(gradients[1:], grad_parameters, strict=True):
            total += part_of_it
    return torch.stack([(value * counted).sum(0) for value in (distillation, regression, label, agreement)])


@dataclass(frozen=True)
class _Wanted:
    """What a draft should say at some positions, in its own vocabulary.

    `probs` [r, V] of the target, all zero where its best token is unknown to the draft; `best` and `labels` Long [r],
    the target's best token and the text's, 0 where unknown; `knows_best` and `knows_label` float [r], 0 or 1.
    """

    probs: Tensor
    best: Tensor
    labels: Tensor
    knows_best: Tensor
    knows_label: Tensor


def _wanted(target_logits: Tensor, labels: Tensor, d2t: Tensor | None) -> _Wanted:
    """From the target's logits [r, V] and the tokens of the text, Long [r]."""
    best = target_logits.argmax(-1)
    if d2t is None:
        known = torch.ones_like(best, dtype=target_logits.dtype)
        return _Wanted(target_logits.softmax(-1), best, labels, known, known)
    places = draft_indices(d2t, target_logits.shape[-1])
    best, labels = places[best], places[labels]
    knows_best, knows_label = ((index >= 0).to(target_logits.dtype) for index in (best, labels))
    probs = target_logits[:, d2t].softmax(-1) * knows_best[:, None]
    return _Wanted(probs, best.clamp_min(0), labels.clamp_min(0), knows_best, knows_label)


def _imitate(
    logits: Tensor, wanted: _Wanted, weights: Tensor | None, config: LossConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How well the logits say what the target says, and what stands in the text.

    Args:
        logits: [r, D, V].
        wanted: what they should say.
        weights: [r, D] of each position in the loss; None where no gradient is needed.

    Returns:
        soft cross-entropy, cross-entropy with the labels and top-1 agreement with the target, each [r, D]; and the
        gradient of the weighted loss at the logits [r, D, V], which is known: softmax(logits) minus what is wanted.
    """
    wide = _at_least_float32(logits)
    agreement = (wide.argmax(-1) == wanted.best[:, None]) * wanted.knows_best[:, None]
    log_probs = wide.log_softmax(-1)
    index = wanted.labels[:, None, None].expand(-1, wide.shape[1], -1)
    distillation = -(log_probs @ wanted.probs[..., None])[..., 0]
    label = -log_probs.gather(-1, index)[..., 0] * wanted.knows_label[:, None]
    if weights is None:
        return distillation, label, agreement, torch.empty(0)
    soft, hard = config.distillation_weight * wanted.knows_best, config.label_weight * wanted.knows_label
    aim = config.distillation_weight * wanted.probs[:, None].expand_as(wide)
    if config.label_weight:
        aim = aim.scatter_add(-1, index, hard[:, None, None].expand_as(index).to(wide.dtype))
    mass = (soft + hard)[:, None, None]
    gradient = log_probs.exp_().mul_(mass).sub_(aim).mul_(weights[..., None])
    return distillation, label, agreement, gradient


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
