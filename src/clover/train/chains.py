"""Estimate the τ of a greedy chain on held-out texts, without decoding. Training reports it.

The outputs of all heads are known at every position of a text, forced with its tokens. So one walk along the text finds
the steps of decoding: a step accepts the consecutive right heads, and the next step begins after them.

Shapes: B texts, T tokens, D heads, H hidden, V' the draft's vocabulary; r positions that are processed together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clover.data import TextBatch
from clover.data.features import Features
from clover.drafts import DraftModel
from clover.drafts.copies import Copied, CopyWeights, choose_mixed, copied_in
from clover.drafts.vocabulary import target_tokens
from clover.metrics import Acceptance
from clover.train.losses import chunk_rows, target_logits_of


@dataclass(frozen=True)
class ChainEstimate:
    """The acceptance of a greedy chain along texts.

    `tokens` counts the tokens measured, and `own` those that are the target's first choice: all, in its greedy texts.
    """

    acceptance: Acceptance
    tokens: int
    own: int

    def __add__(self, other: ChainEstimate) -> ChainEstimate:
        return ChainEstimate(
            self.acceptance + other.acceptance, self.tokens + other.tokens, self.own + other.own
        )


def walk(draft: DraftModel, batch: TextBatch, features: Features, outputs: Tensor) -> ChainEstimate:
    """Estimate a chain of D tokens in a batch, from the outputs [D, B, T, H] of all heads."""
    right, best = _right(draft, batch, features, outputs)
    chosen = best[:, 1:-1][batch.predicted_mask[:, 2:]]
    own = chosen == batch.tokens[:, 2:][batch.predicted_mask[:, 2:]]
    runs, found = right.cumprod(-1).sum(-1).cpu(), Acceptance()
    for text, learnt in zip(runs.tolist(), batch.predicted_mask.tolist(), strict=True):
        at, end = 0, max((place + 1 for place, one in enumerate(learnt) if one), default=0)
        while (left := end - 2 - at) > 0:
            count = text[at] + 1
            if learnt[at + 2]:
                found.record(min(count, left), len(outputs), cut=count > left)
            at += count
    return ChainEstimate(found, len(own), int(own.sum()))


def _right(draft: DraftModel, batch: TextBatch, features: Features, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 where a head's first choice is the target's choice for a learnt token, otherwise 0: Long [B, T, D].

    Return also the target's choice after each position, Long [B, T]; -1 if the next token is not learnt.
    Heads after a wrong one are not evaluated, and count as wrong, because the chain ends there.
    """
    learnt, depth, length = batch.predicted_mask, len(outputs), batch.tokens.shape[1]
    vocab_size, device = draft.target.vocab_size, outputs.device
    found = torch.zeros(*learnt.shape, depth, dtype=torch.long, device=device)
    shares = getattr(draft.config, "copy_shares", None)
    weights = CopyWeights.of(shares, device) if shares and any(shares) else None
    copies = copied_in(batch.tokens) if weights else None
    text, start = (places.to(device) for places in learnt[:, 2:].nonzero(as_tuple=True))
    best = torch.full_like(batch.tokens, -1)
    for part in torch.arange(len(text), device=device).split(chunk_rows(vocab_size, device)):
        row, at = text[part], start[part] + 1
        best[row, at] = target_logits_of(draft, features.hidden_target[row, at]).argmax(-1)
    reached = torch.arange(len(text), device=device)
    for head, output in enumerate(outputs):
        known = reached[start[reached] + 1 + head < length - 1]
        reached = known[:0]
        for part in known.split(chunk_rows(2 * vocab_size, device)):
            row, at = text[part], start[part]
            compared, logits = at + 1 + head, draft.train_logits(output[row, at][:, None])  # [r, 1, V']
            if weights and copies:
                of = Copied(*(values[row, compared][:, None] for values in copies))
                chosen = choose_mixed(logits, of, weights, draft.d2t, vocab_size)[:, 0]
            else:
                chosen = target_tokens(draft.d2t, logits[:, 0].argmax(-1))
            right = chosen == best[row, compared]
            found[row, at, head] = right.long()
            reached = torch.cat((reached, part[right]))
    return found, best
