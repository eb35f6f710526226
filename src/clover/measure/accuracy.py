"""Count how often each head of a draft is right, position by position over whole texts.

The draft runs through the session that the engine uses: at each position it commits the pair (h_t, x_{t+1}), and is
then forced, depth after depth, with the text's own tokens. Head i (from 0) at position t predicts token t + 2 + i. A
position counts for head i when all tokens from t + 2 to t + 2 + i are to be predicted, as in decoding.

Shapes: N texts of all batches, B texts of a batch, T tokens, D heads, K sizes of the top, V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clover.data import Batch, Batches, Sample
from clover.drafts import DraftModel
from clover.drafts.vocabulary import over_all_tokens
from clover.measure.report.statistics import Estimate, ratio
from clover.target import TargetWeights

TOP = (1, 2, 3, 5, 10)
MAX_HEADS = 8  # heads that are looked at where a draft goes down without end
_BATCH_TOKENS = 16384  # of texts that are run at once, unless one is longer

TopCounts = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True)
class HeadAccuracy:
    """Counts over N texts. A head is right within k if the text's next token is among its k best.

    Attributes:
        positions: [N, D], that count.
        forced: [N, D, K], right within TOP[k] where the head is forced with the text's tokens.
        chained: [N, D, K], the same, and the first choices of all heads before were right, too.
    """

    positions: tuple[tuple[int, ...], ...]
    forced: TopCounts
    chained: TopCounts

    def __post_init__(self) -> None:
        tables = self.positions, self.forced, self.chained
        texts, heads = set(map(len, tables)), {len(text) for table in tables for text in table}
        sizes = {len(head) for counts in (self.forced, self.chained) for text in counts for head in text}
        if len(texts) > 1 or len(heads) > 1 or sizes - {len(TOP)}:
            raise ValueError("positions, forced and chained must be of the same texts and heads")

    def __add__(self, other: HeadAccuracy) -> HeadAccuracy:
        """Return the counts of the texts of both."""
        return HeadAccuracy(
            self.positions + other.positions, self.forced + other.forced, self.chained + other.chained
        )

    @property
    def totals(self) -> list[int]:
        """Return the positions of all texts together, per head."""
        return [sum(column) for column in zip(*self.positions, strict=True)]

    def pairs(self, counts: TopCounts, head: int, rank: int) -> list[tuple[int, int]]:
        """Return, of each text, how often a head was right within TOP[rank], and its positions.

        `counts` is `forced` or `chained`.
        """
        return [(top[head][rank], all_[head]) for top, all_ in zip(counts, self.positions, strict=True)]

    def shares(self, counts: TopCounts) -> list[list[Estimate]]:
        """Return shares [D, K] of `forced` or `chained`, 0 … 1, with standard errors over texts; 0 of nothing is 0."""
        return [
            [ratio(self.pairs(counts, head, rank)) for rank in range(len(TOP))]
            for head in range(len(self.totals))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return positions and shares per head and size of the top, as JSON values."""
        found: dict[str, Any] = {"top": list(TOP), "texts": len(self.positions), "positions": self.totals}
        for name in ("forced", "chained"):
            grid = self.shares(getattr(self, name))
            found[name] = [[share.value for share in row] for row in grid]
            found[f"{name}_errors"] = [[share.error for share in row] for row in grid]
        return found


def text_batches(target: TargetWeights, samples: Sequence[Sample]) -> list[Batch]:
    """Return whole texts in batches, the same for every draft; a part of a text would have lost its prompt."""
    return list(Batches(samples, target.longest_run, _BATCH_TOKENS, seed=0).epoch())


def as_sample(prompt: Sequence[int], new: Sequence[int]) -> Sample:
    """Return a text of which the tokens after the prompt are to be predicted."""
    tokens = torch.tensor([*prompt, *new], dtype=torch.int32)
    return Sample(tokens, torch.arange(len(tokens)) >= len(prompt))


def measure_heads(
    target: TargetWeights,
    draft: DraftModel,
    batches: Sequence[Batch],
    progress: Callable[[float], None] = lambda share: None,
) -> HeadAccuracy:
    """Measure the accuracy of a draft's heads, at most MAX_HEADS, on the tokens that the batches mark as predicted.

    `progress` is called after each batch, of `text_batches`, with the share that is done, 0 … 1.
    """
    found = HeadAccuracy((), (), ())
    for number, batch in enumerate(batches, 1):
        found += count_ranks(rank_tokens(target, draft, batch), batch.predicted_mask)
        progress(number / len(batches))
    return found


@torch.inference_mode()
def rank_tokens(target: TargetWeights, draft: DraftModel, batch: Batch) -> Tensor:
    """Return the rank of the text's next token in the order of each head, 0 first: Long [D, B, T]; V if not ranked."""
    heads, tokens = min(draft.max_depth, MAX_HEADS), batch.tokens.to(target.device)
    read = target.train_forward(tokens, draft.config.hidden_state).read
    ranks = torch.full((heads, *tokens.shape), target.vocab_size, device=target.device)
    places = batch.predicted_mask[:, 2:].any(0).nonzero().flatten().tolist()
    for at, head, logits in forced_logits(draft, read, tokens, places, heads):
        ranks[head, :, at] = rank_of(logits, tokens[:, at + head + 2])
    return ranks.cpu()


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
            yield at, head, over_all_tokens(logits, draft.session_tokens, draft.target.vocab_size, -torch.inf)


def count_ranks(ranks: Tensor, predicted_mask: Tensor) -> HeadAccuracy:
    """Count ranks [D, B, T] where a head and all before it predict tokens of the mask, Bool [B, T]."""
    heads, _, length = ranks.shape
    ahead = torch.nn.functional.pad(predicted_mask.cpu(), (0, heads + 1))
    predicted = torch.stack([ahead[:, 2 + head : 2 + head + length] for head in range(heads)])
    counted = predicted.cumprod(0).bool()
    first = (ranks == 0).cumprod(0).bool()
    reached = counted & torch.cat((torch.ones_like(first[:1]), first[:-1]))
    within = [torch.stack([((ranks < k) & some).sum(2) for k in TOP], -1) for some in (counted, reached)]
    forced, chained = (
        tuple(tuple(map(tuple, text)) for text in counts.transpose(0, 1).tolist()) for counts in within
    )
    return HeadAccuracy(tuple(map(tuple, counted.sum(2).T.tolist())), forced, chained)


def rank_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the rank of tokens [B] in the order of logits [B, V]: V at -inf; of equals, the smaller token is first."""
    own = logits.gather(1, tokens[:, None])
    smaller = torch.arange(logits.shape[1], device=logits.device) < tokens[:, None]
    rank = ((logits > own) | ((logits == own) & smaller)).sum(1)
    return torch.where(own[:, 0].isneginf(), logits.shape[1], rank)
