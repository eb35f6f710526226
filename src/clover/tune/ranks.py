"""Where a draft ranks the tokens that the target writes: what the acceptance of every static tree follows from.

A draft is forced along a text (`clover.evaluate.accuracy.forced_logits`). At the text's n-th new token the *rank path*
holds, per depth, the rank of the token that really comes, given that all before it on the path were right; it ends
where the rank is not below the width, the draft ends, or the text does. A static tree that is grown there accepts the
longest start of the rank path that it has as a node, and the next tree is grown after that and one bonus token. So one
pass over the texts tells what every static tree would have accepted, at every step.

In sampled texts ranks are those of the scores by which the target chooses, as trees are grown.

Shapes: B texts of a batch, T longest text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from clover.drafts import DraftModel
from clover.evaluate.accuracy import forced_logits, rank_of
from clover.sampling import Sampler
from clover.target import TargetModel
from clover.tune.texts import Text

MAX_DEPTH = 12  # of a tree; each depth takes its share of the time in which ranks and costs are measured
WIDTH = 10  # ranks that a node may have
RankPath = tuple[int, ...]


def rank_texts(
    target: TargetModel,
    draft: DraftModel,
    texts: Sequence[Text],
    max_depth: int = MAX_DEPTH,
    batch_size: int = 8,
    progress: Callable[[float], None] = lambda share: None,
) -> list[tuple[RankPath, ...]]:
    """Force the draft along texts.

    Args:
        max_depth: how deep, if the draft goes so deep.
        progress: called after each batch with the share of the texts that are done.

    Returns:
        per text, the rank path at each new token.
    """
    found: dict[int, tuple[RankPath, ...]] = {}
    # Prompts of about one length together: all texts of a batch are forced from where the shortest prompt ends.
    order = sorted(range(len(texts)), key=lambda number: len(texts[number].prompt))
    for start in range(0, len(order), batch_size):
        some = order[start : start + batch_size]
        ranks = list(_ranks(target, draft, [texts[number] for number in some], max_depth))
        for row, number in enumerate(some):
            found[number] = _rank_paths(texts[number], row, ranks)
        progress(len(found) / len(texts))
    return [found[number] for number in range(len(texts))]


def _rank_paths(text: Text, row: int, ranks: Sequence[tuple[int, int, list[int]]]) -> tuple[RankPath, ...]:
    """The rank path at each new token of a text, which is one row of a batch."""
    paths: list[list[int]] = [[] for _ in text.new]
    for position, depth, found in ranks:
        number = position + 2 - len(text.prompt)  # of the new token that the root's children stand for
        if number >= 0 and number + depth < len(text.new):
            paths[number].append(found[row])
    return tuple(map(_cut, paths))


def _cut(ranks: list[int]) -> RankPath:
    wide = [place for place, rank in enumerate(ranks) if rank >= WIDTH]
    return tuple(ranks[: wide[0]] if wide else ranks)


@torch.inference_mode()
def _ranks(
    target: TargetModel, draft: DraftModel, texts: Sequence[Text], max_depth: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Position, depth (from 0) and rank in each text, in the order in which the draft goes through a batch of texts."""
    longest = max(len(text.tokens) for text in texts)
    padded = [[*text.tokens, *[0] * (longest - len(text.tokens))] for text in texts]
    tokens = torch.tensor(padded, device=target.device)
    hidden = target.train_forward(tokens, draft.config.hidden_state).read
    params, prompts = [text.params for text in texts], [text.prompt for text in texts]
    sampler = Sampler(params, prompts, target.vocab_size, target.device)
    lengths = torch.tensor(list(map(len, prompts)), device=target.device)
    positions = range(max(int(lengths.min()) - 2, 0), longest - 2)
    depths = min(draft.max_depth, max_depth)
    for position, depth, logits in forced_logits(draft, hidden, tokens, positions, depths):
        if depth == 0:
            _commit(sampler, tokens, position + 1, lengths)
        scores = sampler.gumbel_scores(logits.unsqueeze(1), depth)[:, 0]
        yield position, depth, rank_of(scores, tokens[:, position + depth + 2]).tolist()


def _commit(sampler: Sampler, tokens: Tensor, position: int, lengths: Tensor) -> None:
    """Tell the sampler of the token at a position, where the prompt does not hold it: it counts new tokens."""
    sampler.commit(tokens[:, position : position + 1], (position >= lengths).long())
