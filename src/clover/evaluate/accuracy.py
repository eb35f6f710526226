"""How often each head of a draft is right, position by position over whole texts.

The draft is run through the session that the engine uses: at each position it takes in the pair (h_t, x_{t+1}), and is
then forced, depth after depth, with the text's own tokens. Head i (from 0) at position t predicts token t + 2 + i. A
position counts for head i when all tokens from t + 2 to t + 2 + i are to be predicted, as when decoding asks.

Shapes: B texts, T tokens, D heads, K sizes of the top, V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clover.data import Batch
from clover.drafts import DraftModel
from clover.target import TargetModel

TOP = (1, 2, 3, 5, 10)
MAX_HEADS = 8  # heads that are looked at where a draft goes down without end
_CHUNK_ELEMENTS = 2**24  # logits of the target that exist at one time


@dataclass(frozen=True)
class HeadAccuracy:
    """Counts of any number of texts; `a + b` merges two. A head is right within k if the token is among its k best.

    Attributes:
        positions: Long [D], that count.
        reached: Long [D], those of them where the first choices of all heads before were the text's tokens.
        text: Long [D, K], right about the text's next token within TOP[k], of `positions`; forced with the text.
        target: Long [D, K], right about the target's own first choice there, of `positions`; forced with the text.
        chained: Long [D, K], right about the text's next token, of `reached`.
    """

    positions: Tensor
    reached: Tensor
    text: Tensor
    target: Tensor
    chained: Tensor

    def __add__(self, other: HeadAccuracy) -> HeadAccuracy:
        return HeadAccuracy(*(a + b for a, b in zip(self._counts(), other._counts(), strict=True)))

    @property
    def heads(self) -> int:
        """D."""
        return len(self.positions)

    def to_dict(self) -> dict[str, Any]:
        """Counts and shares (0 … 1) per head and size of the top, as JSON values."""
        return {
            "top": list(TOP),
            "positions": self.positions.tolist(),
            "reached": self.reached.tolist(),
            "forced": shares(self.text, self.positions),
            "forced_target_choice": shares(self.target, self.positions),
            "chained_of_all": shares(self.chained, self.positions),
            "chained_of_reached": shares(self.chained, self.reached),
        }

    def _counts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.positions, self.reached, self.text, self.target, self.chained


def shares(counts: Tensor, of: Tensor) -> list[list[float]]:
    """Counts [D, K] as shares of [D]; 0 of nothing is 0."""
    return (counts.double() / of.clamp_min(1)[:, None]).tolist()


@dataclass(frozen=True)
class Ranks:
    """Where a token stands in a head's order, 0 first; V where the position does not exist. Each Long [D, B, T].

    `text` of the token in the text, `target` of the target's first choice there.
    """

    text: Tensor
    target: Tensor


def measure_heads(
    target: TargetModel,
    draft: DraftModel,
    batches: Iterable[Batch],
    progress: Callable[[int], None] = lambda tokens: None,
) -> HeadAccuracy:
    """The accuracy of a draft's heads, at most MAX_HEADS, on the tokens that the batches mark as predicted.

    Args:
        progress: called after each batch with its tokens, padding included.
    """
    heads = min(draft.max_depth, MAX_HEADS)
    empty, grid = torch.zeros(heads, dtype=torch.long), torch.zeros(heads, len(TOP), dtype=torch.long)
    total = HeadAccuracy(empty, empty, grid, grid, grid)
    for batch in batches:
        total = total + count_ranks(rank_tokens(target, draft, batch, heads), batch.predicted_mask)
        progress(batch.tokens.numel())
    return total


@torch.inference_mode()
def rank_tokens(target: TargetModel, draft: DraftModel, batch: Batch, heads: int) -> Ranks:
    """Run a draft over a batch of texts, at every position where a predicted token is two places on."""
    tokens = batch.tokens.to(target.device)
    output = target.train_forward(tokens, draft.config.hidden_state)
    choices = _first_choices(target, output.hidden)
    ranks = torch.full((2, heads, *tokens.shape), target.vocab_size, device=target.device)
    places = batch.predicted_mask[:, 2:].any(0).nonzero().flatten().tolist()
    for at, head, logits in forced_logits(draft, output.read, tokens, places, heads):
        ranks[0, head, :, at] = rank_of(logits, tokens[:, at + head + 2])
        ranks[1, head, :, at] = rank_of(logits, choices[:, at + head + 1])
    return Ranks(*ranks.cpu())


def forced_logits(
    draft: DraftModel, hidden: Tensor, tokens: Tensor, places: Sequence[int], heads: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Run a draft at some positions of whole texts, depth after depth, forced with the text's own tokens.

    Args:
        hidden: [B, T, W] the target's hidden states of the kind that the draft reads.
        tokens: Long [B, T].
        places: positions, rising, below T - 2.
        heads: depths.

    Yields:
        position t, head i and logits [B, V] for token t + 2 + i, as far as the texts go; -inf for tokens that the
        draft cannot propose.
    """
    rows, length = tokens.shape
    session = draft.new_session(rows, length)
    slot, done = torch.zeros(rows, 1, dtype=torch.long, device=tokens.device), 0
    for at in places:
        upto = at + 1
        logits = session.commit(hidden[:, done:upto], tokens[:, done + 1 : upto + 1], [upto - done] * rows)
        done = upto
        for head in range(min(heads, length - 2 - at)):
            if head:
                logits = session.advance(slot, tokens[:, upto + head : upto + head + 1])[:, 0]
            yield at, head, _over_all_tokens(draft, logits)


def _over_all_tokens(draft: DraftModel, logits: Tensor) -> Tensor:
    """Logits [B, V] of the draft's own [B, V']."""
    if draft.d2t is None:
        return logits
    whole = logits.new_full((len(logits), draft.target.vocab_size), -torch.inf)
    return whole.index_copy(1, draft.d2t, logits)


def count_ranks(ranks: Ranks, predicted_mask: Tensor) -> HeadAccuracy:
    """Count ranks over the positions where a head and all before it predict tokens of the mask, Bool [B, T]."""
    heads, _, length = ranks.text.shape
    ahead = torch.nn.functional.pad(predicted_mask.cpu(), (0, heads + 1))
    predicted = torch.stack([ahead[:, 2 + head : 2 + head + length] for head in range(heads)])
    counted = predicted.cumprod(0).bool()
    first = (ranks.text == 0).cumprod(0).bool()
    reached = counted & torch.cat((torch.ones_like(first[:1]), first[:-1]))
    return HeadAccuracy(
        positions=counted.sum((1, 2)),
        reached=reached.sum((1, 2)),
        text=_within(ranks.text, counted),
        target=_within(ranks.target, counted),
        chained=_within(ranks.text, reached),
    )


def _within(ranks: Tensor, counted: Tensor) -> Tensor:
    return torch.stack([((ranks < size) & counted).sum((1, 2)) for size in TOP], dim=1)


def rank_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Place of tokens [B] in the order of logits [B, V]; of equals the smaller token is first, -inf is out of it."""
    own = logits.gather(1, tokens[:, None])
    smaller = torch.arange(logits.shape[1], device=logits.device) < tokens[:, None]
    rank = ((logits > own) | ((logits == own) & smaller)).sum(1)
    return torch.where(own[:, 0].isneginf(), logits.shape[1], rank)


def _first_choices(target: TargetModel, hidden: Tensor) -> Tensor:
    """The target's most probable next token after each position: hidden [B, T, H] to Long [B, T]."""
    rows = max(1, _CHUNK_ELEMENTS // target.vocab_size)
    parts = [target.logits(part).argmax(-1) for part in hidden.flatten(0, 1).split(rows)]
    return torch.cat(parts).view(hidden.shape[:2])
