"""Compute the training loss of a batch from the frozen target's states and the draft's outputs; measure the draft.

Shapes: B texts, T tokens, D heads, H hidden, V' vocabulary of the draft.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from clover.data import TextBatch
from clover.data.features import Features, compute_features, require_finite
from clover.drafts import DraftModel
from clover.drafts.copies import Copied, Guesses, copied_in, join_guesses
from clover.drafts.vocabulary import draft_indices, frequent_tokens, worthwhile_size
from clover.metrics import Acceptance
from clover.train.chains import ChainEstimate, walk
from clover.train.chunked_loss import chunked_head_loss
from clover.train.config import TrainConfig
from clover.train.losses import HeadMetrics

_WALKED = 4096  # a chain is followed in held-out batches until they have this many tokens
_TOGETHER = 256  # the number of guesses whose logits are in memory at one time
# Under autocast the states are bfloat16 and the weights of norms float32, on purpose.
warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")


@dataclass(frozen=True)
class HeldOutMetrics:
    """The metrics of a draft on held-out texts.

    Attributes:
        metrics: the metrics of all heads.
        hits: Long [V'], how often each index of the draft's logits was its choice and correct; empty for the whole
            vocabulary.
        guesses: predictions of the first head and of copies from the text; None if nothing depends on them.
    """

    metrics: HeadMetrics
    hits: Tensor
    guesses: Guesses | None


class Objective:
    """The loss of a draft on batches of text. With bfloat16 (`TrainConfig.dtype`) both models run under autocast.

    Args:
        config: the loss and the dtype.
        draft: bound to its target.
        stored: returns the target's hidden states of a batch; None to run the target.

    Attributes:
        scale: standard deviation of the target's hidden states, the unit of the regression loss.
        bf16: whether autocast is on.
    """

    def __init__(
        self, config: TrainConfig, draft: DraftModel, stored: Callable[[TextBatch], Features] | None = None
    ):
        self.loss_config, self.draft, self.target, self.scale = config.loss, draft, draft.target, 1.0
        self._stored = stored
        self.bf16 = config.dtype == "bfloat16" or (
            config.dtype is None and self.target.dtype == torch.bfloat16
        )

    def loss(self, batch: TextBatch, depths: int, counts: Tensor) -> tuple[Tensor, HeadMetrics]:
        """Return the loss [] of the first `depths` heads on states with noise, and the metrics.

        Args:
            batch: on any device.
            depths: D.
            counts: [D], the number of positions in all batches of the optimizer step (`count_positions`).
        """
        batch = batch.to(self.target.device)
        with self.autocast():
            features = self.features(batch)
            outputs = self.draft(self._noisy(features.hidden_input.float()), batch.tokens, depths)
            return self._loss(outputs, features, batch, counts)

    @torch.no_grad()
    def measure(self, batches: Iterable[TextBatch]) -> HeldOutMetrics:
        """Return the metrics of the draft on `batches`, at least one; nothing is changed."""
        draft, metrics, guesses = self.draft, list[HeadMetrics](), list[Guesses]()
        hits = torch.zeros(0 if draft.d2t is None else len(draft.d2t), dtype=torch.long)
        for batch in batches:
            batch = batch.to(self.target.device)
            with self.autocast():
                features = self.features(batch)
                outputs = draft(features.hidden_input.float(), batch.tokens, draft.trained_depths)
                metrics.append(self._loss(outputs, features, batch)[1])
                if draft.copies_text or draft.d2t is not None:
                    guessed, right = _guesses_of(draft, batch, features, outputs[0])
                    guesses.append(guessed)
                    hits += right.cpu()
        return HeldOutMetrics(sum(metrics[1:], metrics[0]), hits, join_guesses(guesses) if guesses else None)

    @torch.no_grad()
    def estimate(self, batches: Iterable[TextBatch]) -> ChainEstimate:
        """Return the acceptance of a greedy chain in the first batches, some 4,096 tokens; nothing is changed."""
        found, tokens = ChainEstimate(Acceptance(), 0, 0), 0
        for batch in batches:
            if tokens >= _WALKED:
                break
            tokens += int(batch.lengths.sum())
            batch = batch.to(self.target.device)
            with self.autocast():
                features = self.features(batch)
                outputs = self.draft(features.hidden_input.float(), batch.tokens, self.draft.trained_depths)
                found += walk(self.draft, batch, features, outputs)
        return found

    def features(self, batch: TextBatch) -> Features:
        """Return the target's hidden states of a batch on its device; UserError if a value is not finite."""
        stored, kind = self._stored, self.draft.config.hidden_state
        features = stored(batch) if stored else compute_features(self.target, batch.tokens, kind)
        return require_finite(features, batch, self.target)

    def autocast(self) -> torch.autocast:
        """Return the context in which both models run."""
        return torch.autocast(self.target.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def _loss(
        self, outputs: Tensor, features: Features, batch: TextBatch, counts: Tensor | None = None
    ) -> tuple[Tensor, HeadMetrics]:
        target = features.hidden_target
        return chunked_head_loss(self.draft, outputs, target, batch, self.loss_config, self.scale, counts)

    def _noisy(self, hidden: Tensor) -> Tensor:
        """Return states with uniform noise (EAGLE-1, and an option of Clover-2)."""
        if not self.loss_config.noise:
            return hidden
        unit = self.scale if self.loss_config.relative else 1.0
        return hidden + (2 * torch.rand_like(hidden) - 1) * (self.loss_config.noise * unit)


def _guesses_of(
    draft: DraftModel, batch: TextBatch, features: Features, outputs: Tensor
) -> tuple[Guesses, Tensor]:
    """Return the guesses of one batch from the outputs [B, T, H] of head 1, and the hits.

    Hits, Long [V'], count how often each index of the draft's logits was its choice and correct; they are empty for a
    draft with the whole vocabulary. A choice is correct if it is the target's most probable token.
    """
    learnt, target, d2t, device = batch.predicted_mask[:, 2:], draft.target, draft.d2t, outputs.device
    states, of_target = outputs[:, :-2][learnt], features.hidden_target[:, 1:-1][learnt]
    nothing = Copied(batch.tokens, torch.zeros_like(batch.tokens))
    copies = copied_in(batch.tokens) if draft.copies_text else nothing
    tokens, matching = (found[:, 1:-1][learnt] for found in copies)
    known = torch.arange(target.vocab_size, device=device)
    known = known if d2t is None else draft_indices(d2t, target.vocab_size)
    hits, parts = torch.zeros(0 if d2t is None else len(d2t), dtype=torch.long, device=device), []
    for part in torch.arange(len(states), device=device).split(_TOGETHER):
        right, copied = target.logits(of_target[part].to(target.dtype)).argmax(-1), tokens[part]
        own = draft.train_logits(states[part][:, None])[:, 0].double().softmax(-1)
        # Index -1 is an unknown token.
        probs, row = F.pad(own, (0, 1)), torch.arange(len(part), device=device)
        best_prob, best = own.max(-1)
        hit = known[right] == best
        if d2t is not None:
            hits += best[hit].bincount(minlength=len(d2t))
        of_right, of_copied = (probs[row, known[token]] for token in (right, copied))
        parts.append(Guesses(matching[part], hit, copied == right, of_right, of_copied, best_prob))
    return join_guesses(parts), hits


def fit_to_held_out(
    draft: DraftModel, measured: HeldOutMetrics, config: TrainConfig, counts: Tensor | None
) -> bool:
    """Reduce the vocabulary to the tokens that are worth their time, and fit the probabilities of copied tokens.

    Return whether the vocabulary is now smaller; then `measured` no longer holds for the draft.

    Args:
        draft: the trained draft, which is changed.
        measured: the metrics of the draft on held-out texts.
        config: `fit_vocabulary` enables the first; `copy_shares` in the draft's options disables the second.
        counts: Long [V], occurrences of each token in the texts; None for a draft with the whole vocabulary.
    """
    size = draft.config.draft_vocab_size
    if config.fit_vocabulary and draft.d2t is not None and counts is not None:
        order = counts[draft.d2t.cpu()].argsort(descending=True, stable=True)
        draft.reduce_vocabulary(frequent_tokens(counts, worthwhile_size(measured.hits[order])))
    guesses = None if "copy_shares" in config.draft else measured.guesses
    if guesses is not None:
        draft.fit_copies(guesses)
    return draft.config.draft_vocab_size != size
