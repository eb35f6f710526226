"""What the first head of a draft guesses in texts, and what is copied there: that decides what it copies.

Shapes: B texts, T tokens, H hidden, R positions that are learnt, V vocabulary, V' the draft's.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from clover.data import Batch
from clover.data.features import Features
from clover.drafts import DraftModel
from clover.drafts.copies import Copied, Guesses, copied_in, joined
from clover.drafts.vocabulary import draft_indices

_TOGETHER = 256  # positions whose logits exist at one time


def guesses_of(
    draft: DraftModel, batch: Batch, features: Features, outputs: Tensor
) -> tuple[Guesses, Tensor]:
    """Return the guesses of one batch, from the outputs [B, T, H] of head 1, and the hits.

    Hits are how often each index of the draft's logits was its choice, and right: Long [V'], or empty for a draft of
    the whole vocabulary. Right is the target's most probable token.
    """
    learnt, target, d2t, device = batch.predicted_mask[:, 2:], draft.target, draft.d2t, outputs.device
    states, wanted = outputs[:, :-2][learnt], features.hidden_target[:, 1:-1][learnt]
    nothing = Copied(batch.tokens, torch.zeros_like(batch.tokens))
    copies = copied_in(batch.tokens) if draft.copies_text else nothing
    tokens, matching = (found[:, 1:-1][learnt] for found in copies)
    known = torch.arange(target.vocab_size, device=device)
    known = known if d2t is None else draft_indices(d2t, target.vocab_size)
    hits, parts = torch.zeros(0 if d2t is None else len(d2t), dtype=torch.long, device=device), []
    for part in torch.arange(len(states), device=device).split(_TOGETHER):
        right, copied = target.logits(wanted[part].to(target.dtype)).argmax(-1), tokens[part]
        own = draft.train_logits(states[part][:, None])[:, 0].double().softmax(-1)
        probs, row = F.pad(own, (0, 1)), torch.arange(len(part), device=device)  # index -1: unknown
        best_prob, best = own.max(-1)
        hit = known[right] == best
        if d2t is not None:
            hits += best[hit].bincount(minlength=len(d2t))
        of_right, of_copied = (probs[row, known[token]] for token in (right, copied))
        parts.append(Guesses(matching[part], hit, copied == right, of_right, of_copied, best_prob))
    return joined(parts), hits
