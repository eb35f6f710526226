"""Compute `head_loss` in chunks of positions; for large vocabularies, estimate it from a sample of the lm_head's rows.

The gradient of each chunk is computed together with its loss. Only gradients are kept, never logits.

With 8,192 or more tokens in the draft's vocabulary, a chunk computes only some rows of the logits while gradients are
on: the most probable tokens and the labels of its positions, and a random sample of the others. The sample represents
all the others in the sums of the softmax (importance sampling: Jean and others, 1412.2007). The target's best token is
then the best one in the draft's vocabulary, so the accuracy during training is slightly too high.

Shapes: D heads, B texts, T tokens, R counted positions, r positions of a chunk, H hidden, V vocabulary, S rows in use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clover.data.batching import TextBatch
from clover.drafts import DraftModel, LossConfig
from clover.drafts.vocabulary import draft_indices
from clover.train.losses import (
    HeadMetrics,
    Labels,
    chunk_rows,
    count_positions,
    head_weights,
    labels_of,
    likely_tokens,
    position_values,
    target_logits_of,
    weighted_sum,
    weighted_terms,
    wide,
    widened,
)


@dataclass(frozen=True)
class RowSampling:
    """The rule for the rows of a large lm_head that a chunk uses.

    Args:
        large: minimum number of rows for sampling; a smaller lm_head uses all rows.
        likeliest: number of the most probable rows of each position, which are always used.
        drawn: number of random rows among the others, for the whole chunk.
    """

    large: int = 8192
    likeliest: int = 8
    drawn: int = 2048


def chunked_head_loss(
    draft: DraftModel,
    outputs: Tensor,
    hidden_target: Tensor,
    batch: TextBatch,
    config: LossConfig,
    scale: float = 1.0,
    counts: Tensor | None = None,
    sampling: RowSampling = RowSampling(),
    elements: int | None = None,
) -> tuple[Tensor, HeadMetrics]:
    """Return the values of `head_loss`, or estimates from sampled rows (`sampling`). Call `backward` only once.

    Args:
        draft, outputs, hidden_target, batch, config, scale, counts: see `head_loss`.
        sampling: the rule for the rows of the lm_head while gradients are on.
        elements: maximum number of logits in memory; None for a number that suits the device.
    """
    depth, device = len(outputs), outputs.device
    likely = likely_tokens(draft, hidden_target, batch.tokens) if config.likely_tokens_only else None
    compared, read, counted = _find_positions(batch.predicted_mask, likely, depth)
    hidden = hidden_target.detach().flatten(0, 1)
    size = len(draft.d2t) if draft.d2t is not None else target_logits_of(draft, hidden[:1]).shape[-1]
    work = _Work(
        draft,
        hidden,
        batch.tokens.flatten(),
        compared,
        read,
        counted,
        count_positions(batch.predicted_mask, depth).to(device) if counts is None else counts.to(device),
        config,
        scale if config.relative else 1.0,
        chunk_rows(size * depth, device, elements),
        sampling if torch.is_grad_enabled() and size >= sampling.large else None,
    )
    loss, sums = ChunkedHeadLoss.apply(work, torch.is_grad_enabled(), outputs, *draft.head_parameters)
    return loss, HeadMetrics(sums)


class ChunkedHeadLoss(torch.autograd.Function):
    """The loss of outputs [D, B, T, H] and the draft's own lm_heads. The forward pass also computes the gradients."""

    @staticmethod
    def forward(ctx: Any, work: _Work, learn: bool, outputs: Tensor, *heads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss [] and the sums [5, D] of `HeadMetrics`; the sums have no gradient."""
        flat = outputs.detach().flatten(1, 2)
        of_outputs, of_heads = torch.zeros_like(flat) if learn else None, list[Tensor]()
        sums = torch.zeros(5, len(flat), dtype=wide(flat.dtype), device=flat.device)
        every = torch.arange(len(flat), device=flat.device)
        for part in torch.arange(len(work.compared), device=flat.device).split(work.rows):
            places = (every, work.read[part])
            with torch.set_grad_enabled(learn):
                states = flat[places].requires_grad_(learn)
                values = work.values(states, part)
                counted = work.counted[part]
                sums += torch.stack([(value.detach() * counted).sum(0) for value in values])
                if of_outputs is None:
                    continue
                weights = head_weights(work.counts, work.config) * counted
                loss = (weighted_terms(values, work.config) * weights).sum()
                with torch.autocast(loss.device.type, enabled=False):
                    # A loss of regression alone uses no lm_head, whose gradient is then 0.
                    of_states, *own = torch.autograd.grad(loss, (states, *heads), materialize_grads=True)
            of_outputs.index_put_(places, of_states, accumulate=True)
            # Gradients must be contiguous like the weights, because PyTorch's fused AdamW reads both in memory order.
            of_heads = [a.add_(b) for a, b in zip(of_heads, own)] or [one.contiguous() for one in own]  # noqa: B905
        ctx.of_outputs = None if of_outputs is None else of_outputs.view_as(outputs)
        ctx.of_heads, ctx.heads = of_heads, len(heads)
        ctx.mark_non_differentiable(sums)
        return weighted_sum(sums, work.counts, work.config), sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of the outputs and the lm_heads.

        The gradients of the lm_heads are large: for Medusa, each further pass over them takes a tenth of a step. So no
        reference to them is kept, because autograd can then use them as `.grad` without a copy.
        """
        of_loss, of_heads = grad_outputs[0], ctx.of_heads
        ctx.of_heads = []
        assert of_heads or not ctx.heads or not ctx.of_outputs.any(), "backward may be called once"
        if not (of_loss.is_cpu and of_loss == 1):
            of_heads = [gradient.mul_(of_loss) for gradient in of_heads]
        missing = [None] * (ctx.heads - len(of_heads))  # No position counts.
        return None, None, ctx.of_outputs * of_loss, *of_heads, *missing


@dataclass(frozen=True)
class _Work:
    """The data that all chunks of a batch share.

    Args:
        draft, config: see `head_loss`.
        hidden: [B · T, H], the target's states after the final norm.
        tokens: Long [B · T].
        compared: Long [R], the positions s in B · T whose next token is learnt.
        read: Long [R, D], the position t that each head reads for s.
        counted: Bool [R, D], whether the pair of s and t counts.
        counts: [D], the number of positions in the mean of each head.
        unit: the unit of the regression.
        rows: maximum number of positions of a chunk, r.
        sampling: the rule for the rows of the lm_head; None to use all.
    """

    draft: DraftModel
    hidden: Tensor
    tokens: Tensor
    compared: Tensor
    read: Tensor
    counted: Tensor
    counts: Tensor
    config: LossConfig
    unit: float
    rows: int
    sampling: RowSampling | None

    def values(self, states: Tensor, part: Tensor) -> tuple[Tensor, ...]:
        """Return the five terms of `HeadMetrics`, each [r, D], of states [r, D, H] at the positions Long [r]."""
        compared = self.compared[part]
        hidden, following = self.hidden[compared], self.tokens[compared + 1]
        if self.sampling is None:
            labels = labels_of(self.draft, hidden, following)
        else:
            labels = _sampled_labels(self.draft, hidden, following, self.sampling)
        logits = self.draft.train_logits(states, labels.rows)
        with torch.autocast(logits.device.type, enabled=False):
            logits = widened(logits)
            complete = logits if labels.log_counts is None else logits + labels.log_counts
            log_probs = logits - complete.logsumexp(-1, keepdim=True)
            return position_values(log_probs, states, hidden, labels, self.unit)


def _sampled_labels(draft: DraftModel, hidden: Tensor, following: Tensor, sampling: RowSampling) -> Labels:
    """Return labels over a sample of the rows.

    The target's best token is the best one in the draft's vocabulary, because logits of the whole vocabulary take too
    long.
    """
    known, token = draft.target.head.scaled(draft.lm_head(hidden.to(draft.target.dtype))), following
    if (d2t := draft.d2t) is not None:
        token = draft_indices(d2t, int(max(d2t.max(), token.max())) + 1)[token]
    kept = torch.zeros(known.shape[-1], dtype=torch.bool, device=known.device)
    kept[known.topk(sampling.likeliest, dim=-1).indices.flatten()] = True
    kept[token[token >= 0]] = True
    others = (~kept).nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), device=others.device)[: sampling.drawn]]
    chosen = torch.cat((kept.nonzero()[:, 0], drawn))
    log_counts = torch.zeros(len(chosen), dtype=wide(known.dtype), device=known.device)
    log_counts[len(chosen) - len(drawn) :] = math.log(max(len(others), 1) / max(len(drawn), 1))
    index = draft_indices(chosen, len(kept))
    probs = (widened(known[:, chosen]) + log_counts).softmax(-1)
    token = torch.where(token >= 0, index[token], -1)
    return Labels(probs, index[known.argmax(-1)], token, chosen, log_counts)


def _find_positions(mask: Tensor, likely: Tensor | None, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions s >= 1 whose next token is learnt, and the positions t = s − 1 − i that head i reads for s.

    Both are indices into B · T, Long [R] and Long [R, D]. The third result, Bool [R, D], is True for pairs that count:
    t is in the text, and if `likely` Bool [B, T] is given, all tokens from t + 1 to s are likely.
    """
    learnt = mask.clone()
    learnt[:, :2] = False
    text, following = learnt.nonzero(as_tuple=True)
    compared = following - 1
    read = compared[:, None] - 1 - torch.arange(depth, device=compared.device)
    counted = read >= 0
    if likely is not None:
        forced = torch.stack([likely[text, (compared - head).clamp_min(0)] for head in range(depth)], dim=1)
        counted &= forced.cumprod(1).bool()
    first = text * mask.shape[1]
    return first + compared, first[:, None] + read.clamp_min(0), counted
