"""Copy from the text: a token that followed an earlier occurrence of a path's end gets a share of the distribution.

The longest match is found between the end of a path and the text before it, of at most `LONGEST` tokens; of several
equally long matches, the last one. The token c after the match is copied. With a match of n tokens, and the draft's own
distribution p, the mixture is

    q = (1 - a_n) p + a_n [c],   a_0 = 0

The copy weights a_1 … a_4 maximize the likelihood of held-out texts (`fit_copy_weights`). A draft that copies well by
itself gets small weights. The mixture with a pointer into the text is from See et al. (1704.04368); exact matches,
instead of attention, are from prompt lookup. Here each node of a tree has its own match.

Shapes: B batch, S slots of the text, P nodes, V vocabulary of the target, V' the draft's, R positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from clover.drafts.vocabulary import draft_indices, over_all_tokens, target_tokens

LONGEST = 4  # the longest match in tokens; longer matches hardly make the copy right more often
_ROUNDS = 50  # iterations of expectation maximization
_LEAST_GAIN = 0.01  # a draft copies nothing unless at least this share of positions becomes right


class CopySource(NamedTuple):
    """The text that is copied from.

    `tokens` Long [B, S]; `lengths` Long [B, 1], the number of tokens; `order` Int [B, 1, S], rising over the slots
    that a token follows, and elsewhere so low that no match can win there.
    """

    tokens: Tensor
    lengths: Tensor
    order: Tensor

    @classmethod
    def of(cls, tokens: Tensor, lengths: Tensor) -> CopySource:
        """Return the source for `tokens` and `lengths`; tokens beyond the lengths may be anything."""
        size = tokens.shape[1]
        slots = torch.arange(size, dtype=torch.int32, device=tokens.device)
        order = torch.where(slots < lengths - 1, slots, -(LONGEST + 1) * size)
        return cls(tokens, lengths, order.unsqueeze(1))


class Copied(NamedTuple):
    """The copied token after each node, `tokens` Long [B, P], and the length of its match, `matching` Int [B, P].

    If nothing matches, `matching` is 0 and the token is meaningless.
    """

    tokens: Tensor
    matching: Tensor


class CopyWeights(NamedTuple):
    """The weights a_n, as log a_n and log (1 - a_n), each float64 [LONGEST + 1], from n = 0 on."""

    copied: Tensor
    own: Tensor

    @classmethod
    def of(cls, shares: Sequence[float], device: torch.device) -> CopyWeights:
        """Return the logarithms of the weights a_1, a_2 and so on."""
        every = torch.tensor([0.0, *shares], dtype=torch.float64, device=device)
        return cls(every.log(), (-every).log1p())


def runs_at_end(text: CopySource) -> Tensor:
    """Return how many tokens up to each slot equal the end of the text, at most `LONGEST`: Int [B, 1, S]."""
    tokens, lengths, _ = text
    back = torch.arange(1, LONGEST + 1, device=tokens.device)
    newest = F.pad(tokens, (LONGEST, 0), value=-1).gather(1, lengths + LONGEST - back)
    # The newest token is first.
    ends = F.pad(tokens, (LONGEST - 1, 0), value=-2).unfold(1, LONGEST, 1).flip(-1)
    return (
        (ends == newest.unsqueeze(1)).cumprod(-1, dtype=torch.int32).sum(-1, dtype=torch.int32).unsqueeze(1)
    )


def extended(runs: Tensor, text: CopySource, tokens: Tensor) -> Tensor:
    """Return the runs Int [B, P, S] of paths that are each extended by one token, Long [B, P]."""
    longer = F.pad(runs, (1, -1)).add_(1).clamp_(max=LONGEST)
    return longer.mul_(text.tokens.unsqueeze(1) == tokens.unsqueeze(2))


def copied(runs: Tensor, text: CopySource) -> Copied:
    """Return the token after the longest of the runs Int [B, P, S] in the text; of equal runs, the last counts."""
    size = runs.shape[2]
    best, places = torch.add(text.order, runs, alpha=size).max(-1)
    following = text.tokens.gather(1, (places + 1).clamp_(max=size - 1))
    return Copied(following, best.div(size, rounding_mode="floor").clamp_(min=0))


def copied_in(tokens: Tensor) -> Copied:
    """Return the copied token after each position of whole texts, Long [B, S], from the text up to that position."""
    steps, runs = list[Copied](), torch.zeros_like(tokens, dtype=torch.int32).unsqueeze(1)
    for end in range(1, tokens.shape[1] + 1):
        text = CopySource.of(tokens[:, :end], tokens.new_full((len(tokens), 1), end))
        runs = extended(F.pad(runs[..., : end - 1], (0, 1)), text, tokens[:, end - 1 : end])
        steps.append(copied(runs, text))
    return Copied(*(torch.cat(parts, dim=1) for parts in zip(*steps, strict=True)))


def mix_copies(
    logits: Tensor, of: Copied, weights: CopyWeights, d2t: Tensor | None, vocab_size: int
) -> Tensor:
    """Return log-probabilities q [B, P, V] of the mixture over the target's whole vocabulary, of logits [B, P, V'].

    `d2t` Long [V'] maps the logits to tokens; None if they are of all tokens. The dtype is float32, or float64.
    """
    own = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    from_text, from_draft = (part.to(own.dtype)[of.matching].unsqueeze(-1) for part in weights)
    own = own.add_(from_draft)
    own = over_all_tokens(own, d2t, vocab_size, -torch.inf)
    place = of.tokens.unsqueeze(-1)
    return own.scatter_(-1, place, own.gather(-1, place).logaddexp(from_text))


def choose_mixed(
    logits: Tensor, of: Copied, weights: CopyWeights, d2t: Tensor | None, vocab_size: int
) -> Tensor:
    """Return the most probable tokens Long [B, P] of `mix_copies`, without rows over the whole vocabulary.

    Each is the draft's own first choice, or the copied token, because only that token gains probability.
    """
    own = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    from_text, from_draft = (part.to(own.dtype)[of.matching] for part in weights)
    best, index = own.max(-1)
    place = of.tokens if d2t is None else draft_indices(d2t, vocab_size)[of.tokens]
    copied = own.gather(-1, place.clamp_min(0).unsqueeze(-1))[..., 0].masked_fill(place < 0, -torch.inf)
    copying = (copied + from_draft).logaddexp(from_text) > best + from_draft
    return torch.where(copying, of.tokens, target_tokens(d2t, index))


class Guesses(NamedTuple):
    """Held-out predictions of a draft and of the copies, at positions of texts that were not trained on, all [R].

    Attributes:
        matching: Int, the length of the match.
        own_right, copy_right: Bool, whether the draft's best token is right, and whether the copied one is.
        right_prob, copy_prob, best_prob: float64, the draft's probabilities of the right, copied and best tokens.
    """

    matching: Tensor
    own_right: Tensor
    copy_right: Tensor
    right_prob: Tensor
    copy_prob: Tensor
    best_prob: Tensor


def join_guesses(parts: Sequence[Guesses]) -> Guesses:
    """Concatenate predictions of one or more parts."""
    return Guesses(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def fit_copy_weights(guesses: Guesses) -> list[float] | None:
    """Return the copy weights a_1 … that maximize the likelihood of the right tokens, by expectation maximization.

    None unless the mixture's best token is right at more positions than the draft's, by more than 1 % of all.
    """
    shares = [_share(guesses, guesses.matching == n) for n in range(1, LONGEST + 1)]
    share = guesses.best_prob.new_tensor([0.0, *shares])[guesses.matching]
    copying = share + (1 - share) * guesses.copy_prob > (1 - share) * guesses.best_prob
    gained = torch.where(copying, guesses.copy_right, guesses.own_right).sum() - guesses.own_right.sum()
    return shares if int(gained) > _LEAST_GAIN * len(share) else None


def _share(guesses: Guesses, at: Tensor) -> float:
    share, right, probs = 0.5, guesses.copy_right[at].double(), guesses.right_prob[at]
    for _ in range(_ROUNDS):
        by_copying = share * right / (share * right + (1 - share) * probs).clamp_min(1e-12)
        # The divisor is one larger, so the share is below 1, as RecallConfig requires, and 0 without positions.
        share = float(by_copying.sum() / (len(right) + 1))
    return share
