"""Where a draft ranks the tokens that the target writes: what the acceptance of every static tree follows from.

A draft is forced along a text (`clover.evaluate.accuracy.forced_logits`). At the text's n-th new token the *rank path*
holds, per depth, the rank of the token that really comes, given that all before it on the path were right; it ends
where the rank is not below the width, the draft ends, or the text does. A static tree that is grown there accepts the
longest start of the rank path that it has as a node, and the next tree is grown after that and one bonus token. So one
pass over the texts tells what every static tree would have accepted, at every step.

In sampled texts ranks are those of the race by which the target chooses, as trees are grown (`Sampler.perturbed`).

Shapes: B texts of a batch, T longest text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.drafts import DraftModel
from clover.evaluate.accuracy import forced_logits, rank_of
from clover.sampling import Sampler
from clover.target import TargetModel
from clover.tune.texts import Text

WIDTH = 10  # ranks that a node may have
RankPath = tuple[int, ...]


@dataclass(frozen=True)
class Ranking:
    """What one draft thinks of some texts.

    Args:
        paths: per text and new token, the rank path there.
    """

    paths: tuple[tuple[RankPath, ...], ...]

    @property
    def positions(self) -> int:
        """New tokens of all texts."""
        return sum(map(len, self.paths))


@dataclass(frozen=True)
class _Place:
    """One depth after one position of a batch: ranks Long [B]."""

    at: int
    head: int
    ranks: Tensor


@dataclass(frozen=True)
class _Own:
    """One row of a place."""

    place: _Place
    text: Text
    row: int

    @property
    def number(self) -> int:
        """Of the new token that the root's children stand for; below 0 in the prompt."""
        return self.place.at + 2 - len(self.text.prompt)

    @property
    def rank(self) -> int:
        return int(self.place.ranks[self.row])


def rank_texts(
    target: TargetModel,
    draft: DraftModel,
    texts: Sequence[Text],
    depths: int,
    batch_size: int = 8,
    progress: Callable[[float], None] = lambda share: None,
) -> Ranking:
    """Force the draft along texts.

    Args:
        depths: how deep, if the draft goes so deep.
        progress: called after each batch with the share of the texts that are done.
    """
    found: dict[int, tuple[RankPath, ...]] = {}
    # Prompts of about one length together: all rows of a batch are forced from where the shortest prompt ends.
    order = sorted(range(len(texts)), key=lambda number: len(texts[number].prompt))
    for start in range(0, len(order), batch_size):
        some = order[start : start + batch_size]
        places = list(_places(target, draft, [texts[number] for number in some], depths))
        for row, number in enumerate(some):
            own = [_Own(place, texts[number], row) for place in places]
            own = [
                one for one in own if one.number >= 0 and one.number + one.place.head < len(texts[number].new)
            ]
            found[number] = _rank_paths(len(texts[number].new), own)
        progress(len(found) / len(texts))
    return Ranking(tuple(found[number] for number in range(len(texts))))


def _rank_paths(count: int, places: Sequence[_Own]) -> tuple[RankPath, ...]:
    """The rank path at each of `count` new tokens of a text."""
    ranks: list[list[int]] = [[] for _ in range(count)]
    for one in places:
        ranks[one.number].append(one.rank)
    return tuple(map(_cut, ranks))


def _cut(ranks: list[int]) -> RankPath:
    wide = [place for place, rank in enumerate(ranks) if rank >= WIDTH]
    return tuple(ranks[: wide[0]] if wide else ranks)


@torch.inference_mode()
def _places(target: TargetModel, draft: DraftModel, texts: Sequence[Text], depths: int) -> Iterator[_Place]:
    """All places of a batch of texts, in the order in which the draft goes through them."""
    longest = max(len(text.tokens) for text in texts)
    tokens = torch.tensor(
        [[*text.tokens, *[0] * (longest - len(text.tokens))] for text in texts], device=target.device
    )
    hidden = target.train_forward(tokens, draft.config.hidden_state).read
    sampler = Sampler(
        [text.params for text in texts], [text.prompt for text in texts], target.vocab_size, target.device
    )
    prompts = torch.tensor([len(text.prompt) for text in texts], device=target.device)
    first = max(int(prompts.min()) - 2, 0)
    heads = min(draft.max_depth, depths)
    for at, head, logits in forced_logits(draft, hidden, tokens, range(first, longest - 2), heads):
        if head == 0:
            # The sampler counts the new tokens of each row: token t + 1 is one, where the prompt does not hold it.
            sampler.commit(tokens[:, at + 1 : at + 2], (at + 1 >= prompts).long())
        scores = sampler.perturbed(logits.unsqueeze(1), head)[:, 0]
        yield _Place(at, head, rank_of(scores, tokens[:, at + head + 2]).cpu())
