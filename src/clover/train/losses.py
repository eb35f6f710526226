"""The training loss of a draft's heads, written like its equation (Clover-2, arXiv 2408.00264, §3).

Head i reads position t of a text. Its output o^i_t predicts the target's hidden state f_s at s = t + 1 + i, which in
turn predicts token s + 1. W is the lm_head. i counts from 0, so the first head has weight 1:

    loss = Σ_i decay^i · mean over s of [ distillation_weight · softCE(softmax(W f_s), W o^i_t)
                                          + regression_weight · SmoothL1((o^i_t − f_s) / scale)
                                          + label_weight · CE(token s + 1, W o^i_t) ]

SmoothL1 changes from quadratic to linear at 1, and is averaged over H. The paper's scale is 1; with
`LossConfig.relative` it is the standard deviation of the target's hidden states. Other systems use other weights only.

A draft that proposes from a part of the vocabulary (`DraftModel.d2t`) is compared over that part: the target's
distribution is restricted to it and renormalized. If the target's best token (in the label term: the text's token) is
outside that part, the term is 0. The position still counts in the mean, with accuracy 0 (EAGLE-3, 2503.01840).

`head_loss` computes all logits at once, as the reference for tests. Training calls `chunked_head_loss` of
`clover.train.chunked_loss`. Its value is the same for drafts that propose from fewer than 8,192 tokens; for others it
is an estimate from sampled rows of the lm_head.

Shapes: D heads, B texts, T tokens, H hidden, V vocabulary of the target, V' of the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from clover.data.batching import TextBatch
from clover.drafts import DraftModel, LossConfig
from clover.drafts.vocabulary import draft_indices

_CHUNK_ELEMENTS = {"cpu": 2**25, "cuda": 2**27}  # The most logits in memory at one time.
_LIKELY_TOP_K, _LIKELY_TOP_P = 8, 0.8
_NAMES = ("distillation", "regression", "label", "accuracy")


def head_loss(
    draft: DraftModel,
    outputs: Tensor,
    hidden_target: Tensor,
    batch: TextBatch,
    config: LossConfig,
    scale: float = 1.0,
    counts: Tensor | None = None,
) -> tuple[Tensor, HeadMetrics]:
    """Return the loss of all heads over a batch of texts, [] in float32 or wider, and its metrics.

    This is the reference for tests; training calls `chunked_head_loss`.

    Args:
        draft: bound to its target; its `train_logits` computes logits from the outputs.
        outputs: [D, B, T, H] of `draft.forward`.
        hidden_target: [B, T, H] the target's hidden states after its final norm.
        batch: the texts, and which of their tokens are learnt.
        config: the weights.
        scale: standard deviation of the target's hidden states (`hidden_scale`).
        counts: [D] the number of positions in each head's mean: `count_positions` of all batches of an optimizer step;
            by default that of this batch.
    """
    tokens, (depth, _, length, _) = batch.tokens, outputs.shape
    labels = labels_of(draft, hidden_target[:, :-1], tokens[:, 1:])  # [B, T - 1]
    logits = widened(draft.train_logits(outputs.movedim(0, -2)))  # [B, T, D, V']
    likely = likely_tokens(draft, hidden_target, tokens) if config.likely_tokens_only else tokens >= 0
    unit, reachable, sums = scale if config.relative else 1.0, torch.ones_like(likely), []
    for head in range(depth):
        at, compared = slice(0, max(0, length - 2 - head)), slice(1 + head, length - 1)  # t and s
        log_probs, states = logits[:, at, head, None].log_softmax(-1), outputs[head, :, at, None]
        values = position_values(log_probs, states, hidden_target[:, compared], labels.at(compared), unit)
        reachable = reachable[:, at] & likely[:, compared]  # All drafted tokens of the path are likely ones.
        counted = (batch.predicted_mask[:, 2 + head :] & reachable)[..., None]  # Token s + 1 must be learnt.
        sums.append(torch.stack([(value * counted).sum() for value in values]))
    merged = torch.stack(sums, dim=1)
    counts = count_positions(batch.predicted_mask, depth) if counts is None else counts
    return weighted_sum(merged, counts, config), HeadMetrics(merged.detach())


@dataclass(frozen=True)
class Labels:
    """What a draft learns at positions [...], over its whole vocabulary or S tokens of it.

    `probs` [..., S] are the target's, 0 if its best token is unknown to the draft. `best` and `token`, Long [...], are
    the indices of the target's and the text's token, -1 if unknown. `rows` Long [S] are the sampled rows of the
    lm_head, and `log_counts` [S] the log of how many rows each represents; both are None if all rows are used.
    """

    probs: Tensor
    best: Tensor
    token: Tensor
    rows: Tensor | None = None
    log_counts: Tensor | None = None

    def at(self, compared: slice) -> Labels:
        """Return the labels at some positions of every text."""
        return Labels(self.probs[:, compared], self.best[:, compared], self.token[:, compared])


def labels_of(draft: DraftModel, hidden: Tensor, following: Tensor) -> Labels:
    """Return the labels from the target's states [..., H] and the next tokens, Long [...]."""
    logits, d2t = target_logits_of(draft, hidden), draft.d2t
    best = logits.argmax(-1)
    if d2t is None:
        return Labels(logits.softmax(-1), best, following)
    index = draft_indices(d2t, logits.shape[-1])
    best, token = index[best], index[following]
    return Labels(logits[..., d2t].softmax(-1) * (best >= 0)[..., None], best, token)


def position_values(
    log_probs: Tensor, states: Tensor, hidden: Tensor, labels: Labels, unit: float
) -> tuple[Tensor, ...]:
    """Return the five values that `HeadMetrics` sums, at some positions, each [..., D]; the first three are the loss.

    Args:
        log_probs: [..., D, S] of the draft.
        states: [..., D, H] its outputs.
        hidden: [..., H] the target's states that the outputs predict.
        labels: at these positions.
        unit: of the regression.
    """
    index = labels.token.clamp_min(0)[..., None, None].expand(*log_probs.shape[:-1], 1)
    distillation = -(log_probs @ labels.probs.to(log_probs.dtype)[..., None])[..., 0]
    regression = smooth_l1(states, hidden[..., None, :], unit)
    label = -log_probs.gather(-1, index)[..., 0] * (labels.token >= 0)[..., None]
    correct = log_probs.argmax(-1) == labels.best[..., None]
    return distillation, regression, label, correct, torch.ones_like(correct)


@dataclass(frozen=True)
class HeadMetrics:
    """The metrics of each head; `a + b` merges two batches, which may have different numbers of heads.

    `sums` [5, D] over positions: distillation, regression, label, correct best tokens, number of positions.
    """

    sums: Tensor

    def __add__(self, other: HeadMetrics) -> HeadMetrics:
        deep, shallow = sorted((self.sums, other.sums), key=lambda sums: -sums.shape[1])
        return HeadMetrics(deep + F.pad(shallow, (0, deep.shape[1] - shallow.shape[1])))

    def means(self) -> dict[str, list[float]]:
        """Return means per head: `distillation`, `label` (nats), `regression` (relative), `accuracy` (0 … 1)."""
        *sums, count = self.sums.double().cpu()
        return {name: (part / count.clamp_min(1)).tolist() for name, part in zip(_NAMES, sums, strict=True)}

    def summary(self, config: LossConfig) -> dict[str, float | list[float]]:
        """Return `means`, their weighted sum `loss` over all heads, and the number of `positions` of each head.

        The loss that is minimized divides by all learnt positions. With `LossConfig.likely_tokens_only` they are more
        than the positions measured here.
        """
        sums = self.sums.double().cpu()
        loss = float(weighted_sum(sums, sums[4], config))
        return {"loss": loss, **self.means(), "positions": sums[4].tolist()}


def count_positions(predicted_mask: Tensor, depth: int) -> Tensor:
    """Return how many positions of a batch each of `depth` heads learns from, Long [D].

    Args:
        predicted_mask: Bool [B, T], True for the tokens that are learnt.
        depth: D.
    """
    return torch.stack([predicted_mask[:, 2 + head :].sum() for head in range(depth)])


@torch.no_grad()
def likely_tokens(draft: DraftModel, hidden_target: Tensor, tokens: Tensor) -> Tensor:
    """Return which tokens the target itself might have emitted, Bool [B, T]: in its top 8 and in a nucleus of 0.8.

    The first token of a text counts as likely. Source: the option for a loss mask in the authors' code.

    Args:
        draft: any draft of the target.
        hidden_target: [B, T, H] the target's hidden states after its final norm.
        tokens: Long [B, T] the texts.
    """
    likely = torch.ones(tokens.shape, dtype=torch.bool, device=tokens.device)
    hidden, following = hidden_target[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    size = chunk_rows(target_logits_of(draft, hidden[:1]).numel(), hidden.device)
    parts = []
    for chunk, label in zip(hidden.split(size), following.split(size), strict=True):
        probs = target_logits_of(draft, chunk).softmax(-1)
        better = probs > probs.gather(-1, label[:, None])
        mass_above = (probs * better).sum(-1)
        parts.append((better.sum(-1) < _LIKELY_TOP_K) & (mass_above < _LIKELY_TOP_P))
    likely[:, 1:] = torch.cat(parts).view(len(tokens), -1)
    return likely


def weighted_sum(sums: Tensor | Sequence[Tensor], counts: Tensor, config: LossConfig) -> Tensor:
    """Return the loss [] from the first three of `sums` [≥ 3, D] over `counts` [D] positions."""
    return (weighted_terms(sums, config) * head_weights(counts, config)).sum()


def weighted_terms(values: Sequence[Tensor] | Tensor, config: LossConfig) -> Tensor:
    """Return the weighted sum of the first three values; a value of weight 0 is left out, even if it is infinite."""
    weights = (config.distillation_weight, config.regression_weight, config.label_weight)
    terms = (weight * value for weight, value in zip(weights, values) if weight)  # noqa: B905
    return sum(terms, torch.zeros_like(values[0]))


def head_weights(counts: Tensor, config: LossConfig) -> Tensor:
    """Return the factor [D] of each head's sums in the loss, for sums over `counts` [D] positions."""
    divisors = counts.clamp_min(1).to(torch.promote_types(counts.dtype, torch.float32))
    return config.decay ** torch.arange(len(counts)).to(divisors) / divisors


def target_logits_of(draft: DraftModel, hidden: Tensor) -> Tensor:
    """Return the target's logits [..., V], in float32 or wider, from states [..., H] after its final norm."""
    return widened(draft.target.logits(hidden.to(draft.target.dtype)))


def chunk_rows(logits: int, device: torch.device, elements: int | None = None) -> int:
    """Return how many positions are processed together, each with this number of logits.

    `elements` is the most logits in memory at one time; None for a number that suits the device.
    """
    elements = elements or _CHUNK_ELEMENTS.get(device.type, _CHUNK_ELEMENTS["cuda"])
    return max(1, elements // logits)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for a softmax: float32, or a wider one."""
    return torch.promote_types(dtype, torch.float32)


def widened(values: Tensor) -> Tensor:
    """Return the values in float32 or wider."""
    return values.to(wide(values.dtype))


def smooth_l1(states: Tensor, target: Tensor, unit: float) -> Tensor:
    """Return SmoothL1 [...] of states [..., H] and the target's, both divided by `unit`, as the mean over H.

    `target` may have another dtype, and is broadcast to the shape of `states`.
    """
    states, target = widened(states) / unit, widened(target) / unit
    return F.smooth_l1_loss(states, target.to(states.dtype).expand_as(states), reduction="none").mean(-1)
