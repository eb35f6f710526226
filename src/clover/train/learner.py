"""One draft, its frozen target and the optimizers: what happens in one step.

Shapes: B texts, T tokens, D heads, H hidden, V vocabulary.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from clover.data import Batch
from clover.data.features import Features, compute_features
from clover.drafts import DraftModel
from clover.drafts.copies import Guesses, joined
from clover.target import TargetModel
from clover.train.config import TrainConfig
from clover.train.guesses import guesses_of
from clover.train.losses import (
    HeadLosses,
    HeadMetrics,
    LogitHeads,
    count_positions,
    head_losses,
    likely_tokens,
)
from clover.train.optimizers import make_optimizers
from clover.train.schedule import peak_rate

# Under autocast the states are bfloat16 and the weights of norms float32, on purpose.
warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")


@dataclass(frozen=True)
class HeldOut:
    """What a draft is right about in held-out texts.

    Attributes:
        metrics: of all heads.
        hits, guesses: see `guesses_of`; no guesses where nobody asks for them.
    """

    metrics: HeadMetrics
    hits: Tensor
    guesses: Guesses | None


class Learner:
    """Takes optimizer steps on batches, and measures the loss on others.

    The draft's weights are kept in float32. With bfloat16 (see TrainConfig.dtype) both models compute under autocast.

    Args:
        stored: gives the target's hidden states of a batch; the target is run where it is None.

    Attributes:
        lr: peak learning rate.
        scale: standard deviation of the target's hidden states, the unit of the regression loss.
    """

    def __init__(
        self,
        config: TrainConfig,
        target: TargetModel,
        draft: DraftModel,
        stored: Callable[[Batch], Features] | None = None,
    ):
        self.config, self.target, self.draft, self.scale = config, target, draft, 1.0
        self._stored = stored
        self.device = target.device
        learnt = tuple(draft.head_parameters)
        self._heads = LogitHeads(self._logits, draft.train_logits, draft.lm_head_rows, learnt, draft.d2t)
        self.bf16 = config.dtype == "bfloat16" or (config.dtype is None and target.dtype == torch.bfloat16)
        cast(nn.Module, draft).to(self.device).eval()  # gradients, but no dropout: it is for pretraining
        self.parameters = [p for p in draft.parameters() if p.requires_grad]
        for parameter in self.parameters:
            parameter.data = parameter.data.float()
        self.lr = peak_rate(config, type(draft), target.hidden_size)
        self.optimizers = make_optimizers(draft, config, self.lr)

    def step(self, batches: Sequence[Batch], rate: float, depths: int | None = None) -> HeadMetrics:
        """One optimizer step on all `batches` together, at `rate` times the peak learning rate.

        With `depths`, the draft's first ones alone are learnt and measured.
        """
        depths = depths or self.draft.trained_depths
        divisors = sum(
            (count_positions(batch.predicted_mask, depths) for batch in batches), torch.zeros(depths)
        ).to(self.device)
        metrics = None
        for batch in batches:
            losses = self._learn(batch.to(self.device), divisors)
            losses.backward()
            metrics = losses.metrics if metrics is None else metrics + losses.metrics
        assert metrics is not None
        if self.config.clip_value is not None:
            nn.utils.clip_grad_value_(self.parameters, self.config.clip_value)
        elif self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self.lr * rate
            optimizer.step()
            optimizer.zero_grad()
        return metrics

    @torch.no_grad()
    def measure(self, batches: Iterable[Batch]) -> HeldOut:
        """What the draft is right about in all `batches`; nothing is learnt."""
        every, parts, guesses = self.draft.trained_depths, [], list[Guesses]()
        hits = torch.zeros(0 if self.draft.d2t is None else len(self.draft.d2t), dtype=torch.long)
        for batch in batches:
            batch = batch.to(self.device)
            with self._autocast():
                features = self.features(batch)
                outputs = self.draft(features.hidden_input.float(), batch.tokens, every)
                divisors = count_positions(batch.predicted_mask, every)
                parts.append(self._losses(batch, features, outputs, divisors).metrics)
                if self.draft.may_copy or self.draft.d2t is not None:
                    guessed, found = guesses_of(self.draft, batch, features, outputs[0])
                    guesses.append(guessed)
                    hits += found.cpu()
        return HeldOut(sum(parts[1:], parts[0]), hits, joined(guesses) if guesses else None)

    def summary(self, metrics: HeadMetrics) -> dict[str, Any]:
        """Means per head, and their weighted sum `loss`, which is what is minimised."""
        return {"loss": metrics.loss(self.config.loss), **metrics.means()}

    def _learn(self, batch: Batch, divisors: Tensor) -> HeadLosses:
        """The loss of the first depths, as many as there are divisors, from noisy states."""
        with self._autocast():
            features = self.features(batch)
            hidden = self._noisy(features.hidden_input.float())
            outputs = self.draft(hidden, batch.tokens, len(divisors))
            return self._losses(batch, features, outputs, divisors)

    def _losses(self, batch: Batch, features: Features, outputs: Tensor, divisors: Tensor) -> HeadLosses:
        """The losses of outputs [D, B, T, H]."""
        likely = None
        if self.config.loss.likely_tokens_only:
            likely = likely_tokens(features.hidden_target, batch.tokens, self._logits)
        return head_losses(
            outputs,
            features.hidden_target,
            batch.tokens,
            self._heads,
            batch.predicted_mask,
            self.config.loss,
            self.scale,
            divisors,
            likely,
        )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def features(self, batch: Batch) -> Features:
        """What the target says about a batch on its device."""
        if self._stored is not None:
            return self._stored(batch)
        return compute_features(self.target, batch.tokens, self.draft.config.hidden_state)

    def _noisy(self, hidden: Tensor) -> Tensor:
        """With uniform noise (EAGLE-1; the option of Clover-2)."""
        if not self.config.loss.noise:
            return hidden
        unit = self.scale if self.config.loss.relative else 1.0
        return hidden + (2 * torch.rand_like(hidden) - 1) * (self.config.loss.noise * unit)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.target.logits(hidden.to(self.target.dtype))
