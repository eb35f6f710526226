"""Find the rank that a draft gives to each token that the target wrote: for accuracy, and for the τ of static trees.

A draft is forced along a text, in the same session as in the engine: at each position it commits the pair
(h_t, x_{t+1}), and continues, depth by depth, with the text's own tokens. The *rank path* at the n-th new token has,
for each depth, the rank of the token that follows in the text; 0 is the draft's first choice. It ends with the draft's
depths, or with the text. A static tree there accepts the longest prefix of the rank path that is one of its nodes. In
sampled texts the ranks are those of the scores by which the target chooses.

Shapes: B texts of a batch, T longest text, D depths, V vocabulary; N texts of all batches, K sizes of the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clover.drafts import DraftModel
from clover.drafts.vocabulary import over_all_tokens
from clover.engine import Request
from clover.measure.budget import Enough, never
from clover.measure.report.statistics import Estimate, ratio
from clover.sampling import Sampler
from clover.target import TargetWeights

MAX_DEPTH = 12  # of a tree; each depth takes more time to measure
MAX_HEADS = 8  # the most depths whose accuracy is shown, for drafts that repeat a step
TOP = (1, 2, 3, 5, 10)
_BATCH_TOKENS = 16384  # of texts that run together, unless a single text is longer
RankPath = tuple[int, ...]
TopCounts = tuple[tuple[tuple[int, ...], ...], ...]


def rank_texts(
    target: TargetWeights,
    draft: DraftModel,
    requests: Sequence[Request],
    texts: Sequence[tuple[int, ...]],
    max_depth: int = MAX_DEPTH,
    progress: Callable[[float], None] = lambda share: None,
    enough: Enough = never,
) -> list[tuple[RankPath, ...]]:
    """Return, per text, the rank path at each new token; the rank of a token that the draft cannot propose is V.

    `requests` have the prompts. `progress` is called after each batch with the finished share, 0 … 1. After `enough`
    returns True, each batch is measured only at its first position.
    """
    found: dict[int, tuple[RankPath, ...]] = {}
    starts = [len(request.prompt) for request in requests]
    for some in _batches(starts, [*map(len, texts)]):
        pairs = [(requests[number], texts[number]) for number in some]
        for number, ranks in zip(some, _ranks(target, draft, pairs, max_depth, enough), strict=True):
            # The children of the root at position t stand for token t + 2.
            every, length = ranks.tolist(), len(texts[number])
            places = range(starts[number] - 2, min(starts[number] - 2 + length, len(every)))
            found[number] = tuple(
                tuple(every[at][: length - new]) if at >= 0 else () for new, at in enumerate(places)
            )
        progress(len(found) / len(texts))
    return [found[number] for number in range(len(texts))]


def _batches(starts: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield numbers of texts to run together; they are forced from the end of their shortest prompt."""
    some, longest = list[int](), 0
    for number in sorted(range(len(starts)), key=starts.__getitem__):
        longest = max(longest, starts[number] + lengths[number])
        if some and longest * (len(some) + 1) > _BATCH_TOKENS:
            yield some
            some, longest = [], starts[number] + lengths[number]
        some.append(number)
    if some:
        yield some


@torch.inference_mode()
def _ranks(
    target: TargetWeights,
    draft: DraftModel,
    texts: Sequence[tuple[Request, tuple[int, ...]]],
    max_depth: int,
    enough: Enough,
) -> Tensor:
    """Return the rank of token t + 2 + d at depth d, from 0, in the trees at position t: Long [B, t, D], t ≤ T."""
    whole = [[*request.prompt, *new] for request, new in texts]
    longest, depths = max(map(len, whole)), min(draft.max_depth, max_depth)
    tokens = torch.tensor([[*text, *[0] * (longest - len(text))] for text in whole], device=target.device)
    hidden = target.train_forward(tokens, draft.config.hidden_state).draft_hidden_states
    prompts = [request.prompt for request, _ in texts]
    sampler = Sampler([request.params for request, _ in texts], prompts, target.vocab_size, target.device)
    lengths = torch.tensor(list(map(len, prompts)), device=target.device)
    ranks = torch.full((len(texts), longest, depths), target.vocab_size, device=target.device)
    positions = range(max(int(lengths.min()) - 2, 0), longest - 2)
    for position, depth, logits in forced_logits(draft, hidden, tokens, positions, depths):
        if depth == 0 and position > positions[0] and enough():
            return ranks[:, :position].cpu()
        if depth == 0:  # The sampler counts only new tokens.
            sampler.commit(tokens[:, position + 1 : position + 2], (position + 1 >= lengths).long())
        scores = sampler.gumbel_scores(logits.unsqueeze(1), depth)[:, 0]
        ranks[:, position, depth] = _rank_of(scores, tokens[:, position + depth + 2])
    return ranks.cpu()


def forced_logits(
    draft: DraftModel, hidden: Tensor, tokens: Tensor, places: Sequence[int], depths: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Run a draft at some positions of whole texts, depth by depth, forced with the text's own tokens.

    Args:
        draft: bound to its target.
        hidden: [B, T, W] the target's hidden states, of the kind that the draft reads.
        tokens: Long [B, T].
        places: positions in rising order, below T - 2.
        depths: the most depths.

    Yields:
        position t, depth d and logits [B, V] for token t + 2 + d, up to the end of the texts; -inf for tokens that the
        draft cannot propose.
    """
    rows, length = tokens.shape
    session = draft.new_session(rows, length)
    slot, done = torch.zeros(rows, 1, dtype=torch.long, device=tokens.device), 0
    for at in places:
        upto = at + 1
        logits = session.commit(hidden[:, done:upto], tokens[:, done + 1 : upto + 1], [upto - done] * rows)
        done = upto
        for depth in range(min(depths, length - 2 - at)):
            if depth:
                logits = session.advance(slot, tokens[:, upto + depth : upto + depth + 1])[:, 0]
            yield (
                at,
                depth,
                over_all_tokens(logits, draft.session_tokens, draft.target.vocab_size, -torch.inf),
            )


def _rank_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the rank of tokens [B] by logits [B, V]: V for -inf; of equal logits, the smaller token is first."""
    own = logits.gather(1, tokens[:, None])
    smaller = torch.arange(logits.shape[1], device=logits.device) < tokens[:, None]
    rank = ((logits > own) | ((logits == own) & smaller)).sum(1)
    return torch.where(own[:, 0].isneginf(), logits.shape[1], rank)


@dataclass(frozen=True)
class HeadAccuracy:
    """Counts over N texts. A head is right within k if the text's next token is among its k best tokens.

    Attributes:
        positions: [N, D], the positions counted.
        forced: [N, D, K], how often a head was right within TOP[k], forced with the text's tokens.
        chained: [N, D, K], the same, but only if the first choices of all heads before were right, too.
    """

    positions: tuple[tuple[int, ...], ...]
    forced: TopCounts
    chained: TopCounts

    @classmethod
    def of(cls, texts: Sequence[Sequence[RankPath]], heads: int) -> HeadAccuracy:
        """Count the rank paths of texts at the first `heads` depths."""
        counts = [_count_text(paths, heads) for paths in texts]
        return cls(*zip(*counts, strict=True)) if counts else cls((), (), ())

    def __post_init__(self) -> None:
        tables = self.positions, self.forced, self.chained
        texts, heads = set(map(len, tables)), {len(text) for table in tables for text in table}
        sizes = {len(head) for counts in (self.forced, self.chained) for text in counts for head in text}
        if len(texts) > 1 or len(heads) > 1 or sizes - {len(TOP)}:
            raise ValueError("positions, forced and chained must be of the same texts and heads")

    @property
    def totals(self) -> list[int]:
        """Return the positions of all texts together, per head."""
        return [sum(column) for column in zip(*self.positions, strict=True)]

    def pairs(self, counts: TopCounts, head: int, rank: int) -> list[tuple[int, int]]:
        """Return, for each text, how often a head was right within TOP[rank], and its number of positions.

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
        """Return positions and shares per head and per size in TOP, as JSON values."""
        found: dict[str, Any] = {"top": list(TOP), "texts": len(self.positions), "positions": self.totals}
        for name in ("forced", "chained"):
            grid = self.shares(getattr(self, name))
            found[name] = [[share.value for share in row] for row in grid]
            found[f"{name}_errors"] = [[share.error for share in row] for row in grid]
        return found


def _count_text(paths: Sequence[RankPath], heads: int) -> tuple[Any, Any, Any]:
    """Return positions, forced and chained counts of one text."""
    columns = [[path for path in paths if len(path) > head] for head in range(heads)]
    reached = [[path for path in some if not any(path[:head])] for head, some in enumerate(columns)]
    forced, chained = (
        tuple(tuple(sum(path[head] < k for path in some) for k in TOP) for head, some in enumerate(each))
        for each in (columns, reached)
    )
    return tuple(map(len, columns)), forced, chained
