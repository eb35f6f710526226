"""A draft that is its lm_head alone, for the loss; and the equation of the loss, one position at a time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clover.data import TextBatch
from clover.drafts import LossConfig

D, B, T, H, V = 3, 2, 9, 6, 11
SCALE = 1.7
TOKENS = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(4))


def capped(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return an lm_head with a scale and a soft cap, as Gemma and Cohere have."""
    return lambda hidden: cap(hidden @ weight.T.to(hidden.dtype))


def cap(logits: Tensor) -> Tensor:
    """Scale and cap logits."""
    return 5.0 * torch.tanh(0.3 * logits)


class HeadDraft:
    """What the loss reads of a draft: the target's lm_head `weight` [V, H], or `own` [D, V, H] in its place.

    `known` are the tokens that it proposes from; None for all. `rows_used` records how many logits each call makes.
    """

    def __init__(self, weight: Tensor, known: list[int] | None = None, own: Tensor | None = None):
        self.weight, self.own = weight, own
        self.d2t = None if known is None else torch.tensor(known)
        head = SimpleNamespace(scaled=cap)
        self.target: Any = SimpleNamespace(
            dtype=weight.dtype, logits=self._counted(capped(weight)), head=head
        )
        self.head_parameters = [] if own is None else [own]
        self.rows_used: list[int] = []

    def lm_head(self, hidden: Tensor) -> Tensor:
        weight = self.weight if self.d2t is None else self.weight[self.d2t]
        return self._counted(lambda states: states @ weight.T.to(states.dtype))(hidden)

    def train_logits(self, outputs: Tensor, rows: Tensor | None = None) -> Tensor:
        if self.own is None:
            weight = self.weight if self.d2t is None else self.weight[self.d2t]
            return self._counted(capped(weight if rows is None else weight[rows]))(outputs)
        return torch.einsum("...dh,dvh->...dv", outputs, self.own if rows is None else self.own[:, rows])

    def _counted(self, logits_fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def counted(states: Tensor) -> Tensor:
            logits = logits_fn(states)
            self.rows_used.append(logits.numel())
            return logits

        return counted


def text_batch(mask: Tensor, tokens: Tensor = TOKENS) -> TextBatch:
    """Return a batch of texts whose tokens are learnt where the mask says so."""
    return TextBatch(tokens, mask, torch.full((len(tokens),), tokens.shape[1]))


def make_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return outputs [D, B, T, H], the target's states [B, T, H], its lm_head [V, H] and the mask [B, T]."""
    torch.manual_seed(0)
    outputs = 2 * torch.randn(D, B, T, H, dtype=torch.float64)
    mask = torch.rand(B, T) < 0.6
    mask[1, 6:] = False
    hidden, weight = (
        scale * torch.randn(*size, H, dtype=torch.float64) for scale, size in ((2, (B, T)), (1, (V,)))
    )
    return outputs, hidden, weight, mask


def equation(
    outputs: Tensor,
    hidden: Tensor,
    weight: Tensor,
    mask: Tensor,
    config: LossConfig,
    likely: Tensor | None = None,
    known: list[int] | None = None,
) -> tuple[Tensor, list[list[float]]]:
    """Return the loss and the sums [D, 5] of `HeadMetrics`; `known` are the tokens that the draft proposes from."""
    total, metrics = torch.zeros((), dtype=torch.float64), []
    known = list(range(V)) if known is None else known
    whole, logits_fn = capped(weight), capped(weight[known])
    for i in range(len(outputs)):
        parts, correct, available = [], 0.0, 0
        for b in range(B):
            for t in range(T - 2 - i):
                s = t + 1 + i
                available += int(mask[b, s + 1])
                if not mask[b, s + 1] or (likely is not None and not likely[b, t + 1 : s + 1].all()):
                    continue
                o, f, label = outputs[i, b, t], hidden[b, s], int(TOKENS[b, s + 1])
                best, log_probs = int(whole(f).argmax()), logits_fn(o).log_softmax(-1)
                soft = -(logits_fn(f).softmax(-1) * log_probs).sum() * (best in known)
                smooth = F.smooth_l1_loss(o / SCALE, f / SCALE)
                hard = -log_probs[known.index(label)] if label in known else torch.zeros(()).double()
                parts.append(torch.stack((soft, smooth, hard)))
                correct += float(known[int(log_probs.argmax())] == best)
        sums = torch.stack([torch.zeros(3).double(), *parts]).sum(0)
        weights = (config.distillation_weight, config.regression_weight, config.label_weight)
        mixed = (torch.tensor(weights, dtype=torch.float64) * sums).sum()
        total = total + config.decay**i * mixed / available
        metrics.append([*sums.tolist(), correct, len(parts)])
    return total, metrics
