"""Find where a draft ranks the tokens that the target writes: the acceptance of every static tree follows from it.

A draft is forced along a text (`clover.measure.accuracy.forced_logits`). At the text's n-th new token the
*rank path* holds, per depth, the rank of the token that really comes, given that all before it on the path were
right; it ends where the rank is not below `WIDTH`, the draft ends, or the text does. A static tree that is grown
there accepts the longest start of the rank path that it has as a node. In sampled texts ranks are those of the scores
by which the target chooses.

Shapes: B texts of a batch, T longest text, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile

import torch

from clover.drafts import DraftModel
from clover.engine import Request
from clover.measure.accuracy import forced_logits, rank_of
from clover.measure.timing import WRITTEN_TOGETHER
from clover.sampling import Sampler
from clover.target import TargetWeights

MAX_DEPTH = 12  # of a tree; with each depth more, ranks and costs are measured longer
WIDTH = 10  # ranks that a node may have
RankPath = tuple[int, ...]


def rank_texts(
    target: TargetWeights,
    draft: DraftModel,
    requests: Sequence[Request],
    texts: Sequence[tuple[int, ...]],
    max_depth: int = MAX_DEPTH,
) -> list[tuple[RankPath, ...]]:
    """Force the draft along the new tokens of each request; return, per text, the rank path at each new token."""
    found: dict[int, tuple[RankPath, ...]] = {}
    # Prompts of about one length together: all texts of a batch are forced from where the shortest prompt ends.
    order = sorted(range(len(texts)), key=lambda number: len(requests[number].prompt))
    for start in range(0, len(order), WRITTEN_TOGETHER):
        some = order[start : start + WRITTEN_TOGETHER]
        pairs = [(requests[number], texts[number]) for number in some]
        ranks = list(_ranks(target, draft, pairs, max_depth))
        for row, (number, (request, new)) in enumerate(zip(some, pairs, strict=True)):
            found[number] = _rank_paths(len(request.prompt), len(new), row, ranks)
    return [found[number] for number in range(len(texts))]


def _rank_paths(
    start: int, length: int, row: int, ranks: Sequence[tuple[int, int, list[int]]]
) -> tuple[RankPath, ...]:
    """Return the rank path at each new token of a text, which is one row of a batch."""
    paths: list[list[int]] = [[] for _ in range(length)]
    for position, depth, found in ranks:
        number = position + 2 - start  # of the new token that the root's children stand for
        if number >= 0 and number + depth < length:
            paths[number].append(found[row])
    return tuple(tuple(takewhile(lambda rank: rank < WIDTH, path)) for path in paths)


@torch.inference_mode()
def _ranks(
    target: TargetWeights, draft: DraftModel, texts: Sequence[tuple[Request, tuple[int, ...]]], max_depth: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield position, depth (from 0) and the rank in each text, in the order in which the draft runs over the texts."""
    whole = [[*request.prompt, *new] for request, new in texts]
    longest, depths = max(map(len, whole)), min(draft.max_depth, max_depth)
    tokens = torch.tensor([[*text, *[0] * (longest - len(text))] for text in whole], device=target.device)
    hidden = target.train_forward(tokens, draft.config.hidden_state).read
    prompts = [request.prompt for request, _ in texts]
    sampler = Sampler([request.params for request, _ in texts], prompts, target.vocab_size, target.device)
    lengths = torch.tensor(list(map(len, prompts)), device=target.device)
    positions = range(max(int(lengths.min()) - 2, 0), longest - 2)
    for position, depth, logits in forced_logits(draft, hidden, tokens, positions, depths):
        if depth == 0:  # the sampler counts new tokens: those after the prompt
            sampler.commit(tokens[:, position + 1 : position + 2], (position + 1 >= lengths).long())
        scores = sampler.gumbel_scores(logits.unsqueeze(1), depth)[:, 0]
        yield position, depth, rank_of(scores, tokens[:, position + depth + 2]).tolist()
