"""The training loss of a draft's heads (Clover-2, arXiv 2408.00264, §3; Clover's loss mask option).

Other systems differ in the weights alone (`DraftModel.paper_loss`). Head i at position t is compared with the target
at position s = t + 1 + i, which says token s + 1:

    Σ_i decay^i · mean over s of [ distillation_weight · softCE(softmax(W f_s), W o^i_t)
                                   + label_weight · CE(token s + 1, W o^i_t)
                                   + regression_weight · SmoothL1((o^i_t − f_s) / scale) ]

SmoothL1 has its corner at 1 and is averaged over H. The paper's scale is 1; if `LossConfig.relative`, it is the
standard deviation of the target's hidden states.

A draft that proposes from a part of the vocabulary (`LogitHeads.d2t`) is compared over that part: the target's
distribution is restricted to it and normalised anew. Where the target's best token (for the label term: the text's
token) is not in it, there is nothing to learn; the position still counts in the mean, and its agreement is 0
(EAGLE-3, 2503.01840).

The vocabulary is large, so logits are made for a few positions at a time, and gradients with them, which alone are
kept. While learning through a large lm_head, a chunk has logits of some of its rows only: the likeliest tokens
and labels of all its positions, and a random part of the others, which stands for all of them in the sums of softmax
(importance sampling: Jean and others, 1412.2007). There the best of the tokens that the draft knows counts as the
target's best token, so the accuracy while learning is a little too good. What is measured without learning has all.

Shapes: D heads, B texts, T tokens, R positions that count, r those of one chunk, H hidden, V vocabulary, S its rows
that are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.drafts import LossConfig
from clover.drafts.vocabulary import draft_indices

LogitsFn = Callable[[Tensor], Tensor]  # hidden states after the final norm [..., H] -> logits [..., V]

_CHUNK_ELEMENTS = {"cpu": 2**25, "cuda": 2**27}  # logits of all heads that exist at one time
_LIKELY_TOP_K, _LIKELY_TOP_P = 8, 0.8
_KEPT_TOP_K = 8  # rows of the lm_head per position: the likeliest
_DRAWN = 2048  # rows at random of the others, for a chunk
_LARGE = 8192  # rows from which on not all are looked at
_NAMES = ("distillation", "regression", "label", "accuracy")


@dataclass(frozen=True)
class HeadMetrics:
    """What was measured; `a + b` merges two batches, of which one may have learnt fewer depths.

    `sums` [5, D] over positions: distillation, regression, label, agreement of the best tokens, number of positions.
    """

    sums: Tensor

    def __add__(self, other: HeadMetrics) -> HeadMetrics:
        deep, shallow = sorted((self.sums, other.sums), key=lambda sums: -sums.shape[1])
        return HeadMetrics(deep + F.pad(shallow, (0, deep.shape[1] - shallow.shape[1])))

    def means(self) -> dict[str, list[float]]:
        """Per head: `distillation`, `label` (nats), `regression` (relative difference), `accuracy` (0 … 1)."""
        *sums, count = self.sums.double().cpu()
        return {name: (part / count.clamp_min(1)).tolist() for name, part in zip(_NAMES, sums, strict=True)}

    def loss(self, config: LossConfig) -> float:
        """The loss of all heads, in means over the positions that count.

        `head_losses` takes them over all that are learnt, which are more with `LossConfig.likely_tokens_only`.
        """
        sums = self.sums.double().cpu()
        return float((_mixed(sums, config) * _head_weights(sums[4], config)).sum())


@dataclass(frozen=True)
class HeadLosses:
    """`total` [] float32, the metrics of the batch, and the draft's own lm_heads with their gradients.

    Those are kept beside the graph of `total`, because they are large: each further pass over Medusa's took a tenth of
    a step.
    """

    total: Tensor
    metrics: HeadMetrics
    parameters: tuple[nn.Parameter, ...] = ()
    gradients: tuple[Tensor, ...] = ()

    def backward(self) -> None:
        """Add the gradients to `grad` of everything that made the outputs, and of `parameters`; call it once."""
        self.total.backward()
        # No gradients are there where no position counted.
        for parameter, gradient in zip(self.parameters, self.gradients, strict=False):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


@dataclass(frozen=True)
class LogitHeads:
    """How hidden states become logits.

    Args:
        target: the target's lm_head with its scale and cap, `TargetModel.logits`. Softmax is done in float32.
        draft: outputs [..., D, H] and rows, None for all, to logits [..., D, S]: `DraftModel.train_logits`.
        rows: `DraftModel.lm_head_rows`, the target's lm_head over what the draft proposes from.
        parameters: what `draft` can train.
        d2t: Long [V'], the tokens that the draft's logits [..., D, V'] are of, rising; None for the whole vocabulary.
    """

    target: LogitsFn
    draft: Callable[[Tensor, Tensor | None], Tensor]
    rows: Callable[[Tensor | None], LogitsFn]
    parameters: tuple[nn.Parameter, ...] = ()
    d2t: Tensor | None = None


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
        outputs: [D, B, T, H] of `DraftModel.forward`; gets the gradient.
        hidden_target: [B, T, H] the target's hidden states after its final norm.
        tokens: Long [B, T] the texts.
        predicted_mask: Bool [B, T], tokens that are learnt; False on padding.
        scale: standard deviation of the target's hidden states (`features.hidden_scale`).
        divisors: [D], positions that each head's mean is over: `count_positions` of the batches of a step, or
            this one's.
        likely: Bool [B, T] of `likely_tokens`, if positions with unlikely forced tokens are left out.
    """
    depth, device = len(outputs), outputs.device
    counts = count_positions(predicted_mask, depth) if divisors is None else divisors.to(device)
    weights = _head_weights(counts, config)
    targets, read, counted = _find_positions(predicted_mask, likely, depth)
    flat, hidden = outputs.detach().flatten(1, 2), hidden_target.detach().flatten(0, 1)
    gradients = _Gradients(torch.zeros_like(flat)) if torch.is_grad_enabled() else None
    sums = torch.zeros(5, depth, dtype=_wide(outputs.dtype), device=device)
    every, unit = torch.arange(depth, device=device), scale if config.relative else 1.0
    size = len(heads.d2t) if heads.d2t is not None else heads.target(hidden[:1]).shape[-1]
    wanted_of = _wanted_of_all if gradients is None or size < _LARGE else _wanted_of_some
    for part in torch.arange(len(targets), device=device).split(_chunk_rows(size * depth, device)):
        at, places = targets[part], (every, read[part])
        states = flat[places].requires_grad_(gradients is not None)
        wanted = wanted_of(hidden[at], tokens.flatten()[at + 1], heads)
        values = _values(heads.draft(states, wanted.rows), states, hidden[at], wanted, unit)
        sums += torch.stack([(value.detach() * counted[part]).sum(0) for value in values])
        if gradients is not None:
            loss = (_mixed(values, config) * weights * counted[part]).sum()
            gradients.add(loss, states, places, heads.parameters)
    total = (_mixed(sums, config) * weights).sum()
    if gradients is None:
        return HeadLosses(total, HeadMetrics(sums))
    linked = (outputs * gradients.outputs.view_as(outputs)).sum()
    total = total + (linked - linked.detach())  # adds nothing but the gradient
    return HeadLosses(total, HeadMetrics(sums), heads.parameters, gradients.own)


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
    size = _chunk_rows(logits_fn(hidden[:1]).numel(), hidden.device)
    for chunk, label in zip(hidden.split(size), following.split(size), strict=True):
        probs = _widened(logits_fn(chunk)).softmax(-1)
        better = probs > probs.gather(-1, label[:, None])
        mass_above = (probs * better).sum(-1)
        parts.append((better.sum(-1) < _LIKELY_TOP_K) & (mass_above < _LIKELY_TOP_P))
    likely[:, 1:] = torch.cat(parts).view(len(tokens), -1)
    return likely


def _find_positions(mask: Tensor, likely: Tensor | None, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """Every s (1 <= s) whose next token is learnt; head i reads it at t = s − 1 − i, if that is in the text.

    Returns s and t, counted over B · T, as Long [R] and Long [R, D], and which of the pairs count, Bool [R, D].
    """
    learnt = mask.clone()
    learnt[:, :2] = False
    text, following = learnt.nonzero(as_tuple=True)
    target = following - 1
    output = target[:, None] - 1 - torch.arange(depth, device=target.device)
    counted = output >= 0
    if likely is not None:
        forced = torch.stack([likely[text, (target - head).clamp_min(0)] for head in range(depth)], dim=1)
        counted &= forced.cumprod(1).bool()
    first = text * mask.shape[1]
    return first + target, first[:, None] + output.clamp_min(0), counted


@dataclass(frozen=True)
class _Wanted:
    """What a draft should say at some positions, and the rows of its lm_head that say it.

    `probs` [r, S] of the target, 0 where its best token is unknown; `best` and `label` Long [r], places among the
    rows, -1 where unknown; `rows` Long [S], and `log_counts` [S], the log of how many rows each stands for; both None
    where all rows say it, each for itself.
    """

    probs: Tensor
    best: Tensor
    label: Tensor
    rows: Tensor | None = None
    log_counts: Tensor | None = None


def _wanted_of_all(hidden: Tensor, labels: Tensor, heads: LogitHeads) -> _Wanted:
    """From the target's states [r, H] and the tokens of the text, Long [r]."""
    whole, d2t = _widened(heads.target(hidden)), heads.d2t
    best = whole.argmax(-1)
    if d2t is None:
        return _Wanted(whole.softmax(-1), best, labels)
    places = draft_indices(d2t, whole.shape[-1])
    best, labels = places[best], places[labels]
    return _Wanted(whole[:, d2t].softmax(-1) * (best >= 0)[:, None], best, labels)


def _wanted_of_some(hidden: Tensor, labels: Tensor, heads: LogitHeads) -> _Wanted:
    """The same over a part of the rows.

    The target's best token is the best that the draft knows: asking for the whole vocabulary costs more than it is
    worth.
    """
    known = heads.rows(None)(hidden)
    if (d2t := heads.d2t) is not None:
        labels = draft_indices(d2t, int(max(d2t.max(), labels.max())) + 1)[labels]
    kept = torch.zeros(known.shape[-1], dtype=torch.bool, device=known.device)
    kept[known.topk(_KEPT_TOP_K, dim=-1).indices.flatten()] = True
    kept[labels[labels >= 0]] = True
    others = (~kept).nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), device=others.device)[:_DRAWN]]
    chosen = torch.cat((kept.nonzero()[:, 0], drawn))
    log_counts = torch.zeros(len(chosen), dtype=_wide(known.dtype), device=known.device)
    log_counts[len(chosen) - len(drawn) :] = math.log(max(len(others), 1) / max(len(drawn), 1))
    places = draft_indices(chosen, len(kept))
    probs = (_widened(known[:, chosen]) + log_counts).softmax(-1)
    labels = torch.where(labels >= 0, places[labels], -1)
    return _Wanted(probs, places[known.argmax(-1)], labels, chosen, log_counts)


def _values(
    logits: Tensor, states: Tensor, target: Tensor, wanted: _Wanted, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What is summed up in `HeadMetrics`, each [r, D].

    From the draft's logits [r, D, S] and states [r, D, H], and the target's states [r, H].
    """
    with torch.autocast(logits.device.type, enabled=False):
        logits = _widened(logits)
        counted = logits if wanted.log_counts is None else logits + wanted.log_counts
        log_probs = logits - counted.logsumexp(-1, keepdim=True)
        distillation = _imitate(log_probs, wanted.probs)
        regression = _regress(states, target, scale)
        known, index = wanted.label >= 0, wanted.label.clamp_min(0)[:, None, None]
        label = -log_probs.gather(-1, index.expand(-1, log_probs.shape[1], -1))[..., 0] * known[:, None]
    agreement = log_probs.argmax(-1) == wanted.best[:, None]
    return distillation, regression, label, agreement, torch.ones_like(agreement)


class _Gradients:
    """Those of the chunks so far: for all outputs [D, B · T, H], and for each parameter that is the draft's own."""

    def __init__(self, outputs: Tensor):
        self.outputs = outputs
        self.own: tuple[Tensor, ...] = ()

    def add(
        self, loss: Tensor, states: Tensor, places: tuple[Tensor, Tensor], parameters: tuple[Tensor, ...]
    ) -> None:
        """Add those of one chunk's loss; `states` stand at `places` of the outputs."""
        with torch.autocast(loss.device.type, enabled=False):
            gradient, *own = torch.autograd.grad(loss, (states, *parameters))
        self.outputs.index_put_(places, gradient, accumulate=True)
        if self.own:
            self.own = tuple(map(Tensor.add_, self.own, own))
        else:  # as the weights lie: PyTorch's fused AdamW reads both in memory order, whatever their strides
            self.own = tuple(map(Tensor.contiguous, own))


def _imitate(log_probs: Tensor, target_probs: Tensor) -> Tensor:
    """Soft cross-entropy [r, D] of log-probabilities [r, D, V] with probabilities [r, V]."""
    return -(log_probs @ target_probs.to(log_probs.dtype)[..., None])[..., 0]


def _regress(states: Tensor, target: Tensor, scale: float) -> Tensor:
    """Relative SmoothL1 [r, D], averaged over H."""
    states, aim = _widened(states) / scale, _widened(target)[:, None] / scale
    return F.smooth_l1_loss(states, aim.to(states.dtype).expand_as(states), reduction="none").mean(-1)


def _mixed(values: Sequence[Tensor] | Tensor, config: LossConfig) -> Tensor:
    """The weighted sum of the first three values; what has no weight gets no gradient either."""
    weights = (config.distillation_weight, config.regression_weight, config.label_weight)
    return sum((weight * value for weight, value in zip(weights, values) if weight), 0 * values[0])  # noqa: B905


def _head_weights(counts: Tensor, config: LossConfig) -> Tensor:
    """What the sums of each head over `counts` [D] positions are multiplied by in the loss."""
    heads = torch.arange(len(counts), dtype=counts.dtype, device=counts.device)
    return config.decay**heads / counts.clamp_min(1)


def _chunk_rows(logits: int, device: torch.device) -> int:
    """Positions with so many logits each that are looked at together."""
    return max(1, _CHUNK_ELEMENTS.get(device.type, _CHUNK_ELEMENTS["cuda"]) // logits)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _widened(values: Tensor) -> Tensor:
    """In float32 at least."""
    return values.to(_wide(values.dtype))
