"""Prompt lookup: what followed the last tokens when they stood in the text before. No training, no weights.

The last n tokens of a path, n from `max_ngram` down to `min_ngram`, are looked up in an index of the committed text;
what followed them there is proposed: by how often it did, then by how recently. All that followed a longer n-gram
stands above all that followed only a shorter one, and that above every other token.

Probabilities follow the same order: each n shares its mass by counts, and gets together half of what the least of the
next longer n got; so do the tokens that followed nowhere. Paths of a tree extend what is looked up, not the index.
The first token of a text is not in the index: `commit` takes in the tokens that follow positions.

Shapes: B batch, A committed positions, P frontier nodes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig
from clover.errors import UserError

_TIE = 0.5  # logits fall by at most this for the sake of ties: less than log 2, the step between two n-gram lengths


class LookupConfig(DraftConfig):
    """Configuration of prompt lookup.

    Args:
        num_heads: depth of its own tree.
        max_ngram, min_ngram: longest and shortest run of tokens that is looked up.
    """

    model_type = "lookup"

    def __init__(self, num_heads: Count = 5, max_ngram: Count = 3, min_ngram: Count = 1, **kwargs: Any):
        self.num_heads = num_heads
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram
        if min_ngram > max_ngram:
            raise UserError(f"lookup: min_ngram is {min_ngram}, which is more than max_ngram, {max_ngram}")
        super().__init__(**kwargs)
        if self.draft_vocab_size is not None:
            raise UserError("lookup: draft_vocab_size is given; it has no lm_head to read less of")


class LookupDraft(DraftModel):
    """Prompt lookup as a draft model that has no weights."""

    config: LookupConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = LookupConfig
    repeats_step = True
    trainable = False

    @property
    def trained_depths(self) -> int:
        return 0

    def new_session(self, batch_size: int, capacity: int) -> LookupSession:
        return LookupSession(self, batch_size)

    def save_pretrained(self, save_directory: Any, **options: Any) -> None:  # type: ignore[override]
        """Write the configuration; there is nothing else."""
        self.config.save_pretrained(save_directory)


class NgramIndex:
    """One text and where each of its n-grams led, kept up to date token by token.

    Args:
        shortest, longest: n-grams of these lengths are kept.
    """

    def __init__(self, shortest: int, longest: int):
        self.lengths = range(longest, shortest - 1, -1)
        self.text: list[int] = []
        self._places: dict[
            tuple[int, ...], dict[int, list[int]]
        ] = {}  # n-gram -> token after it -> where, rising

    def append(self, token: int) -> None:
        """Take in the next token of the text."""
        for ngram in self._ends():
            self._places.setdefault(ngram, {}).setdefault(token, []).append(len(self.text))
        self.text.append(token)

    def crop(self, length: int) -> None:
        """Forget the text from `length` on."""
        while len(self.text) > length:
            token = self.text.pop()
            for ngram in self._ends():
                followers = self._places[ngram]
                followers[token].pop()
                if not followers[token]:
                    del followers[token]
                if not followers:
                    del self._places[ngram]

    def tail(self) -> tuple[int, ...]:
        """The last tokens of the text, as many as the longest n-gram has."""
        return tuple(self.text[-self.lengths[0] :])

    def log_shares(self, tail: tuple[int, ...]) -> tuple[dict[int, float], float]:
        """What followed the ends of `tail`, best first.

        Returns:
            the logarithm of each such token's share, and of the mass that all others have together; relative, and
            lowered a little from rank to rank, so that the more recent of two equal ones stands above the other.
        """
        shares: dict[int, float] = {}
        mass = 0.0
        for n in self.lengths:
            followers = self._places.get(tail[-n:], {}) if n <= len(tail) else {}
            new = [(len(at), at[-1], token) for token, at in followers.items() if token not in shares]
            total = sum(count for count, _, _ in new)
            for count, _, token in sorted(new, reverse=True):
                shares[token] = mass + math.log(count / total)
            mass = min(shares.values(), default=math.log(2)) - math.log(2)
        step = _TIE / max(len(shares), 1)
        return {token: share - step * rank for rank, (token, share) in enumerate(shares.items())}, mass

    def _ends(self) -> Iterator[tuple[int, ...]]:
        """The n-grams that the text ends with."""
        for n in self.lengths:
            if n <= len(self.text):
                yield tuple(self.text[-n:])


class LookupSession:
    """Prompt lookup in one running batch: an index per row, and the last tokens of each path of the frontier."""

    def __init__(self, draft: LookupDraft, batch_size: int):
        config = draft.config
        self.draft = draft
        self.rows = [NgramIndex(config.min_ngram, config.max_ngram) for _ in range(batch_size)]
        self.tails: list[list[tuple[int, ...]]] = []  # [B][P]

    @property
    def lengths(self) -> list[int]:
        return [len(row.text) for row in self.rows]

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        for row, tokens, count in zip(self.rows, next_tokens.tolist(), counts, strict=True):
            for token in tokens[:count]:
                row.append(token)
        self.tails = [[row.tail()] for row in self.rows]
        return self._logits(1)[:, 0]

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        longest = self.draft.config.max_ngram
        self.tails = [
            [(*tails[slot], token)[-longest:] for slot, token in zip(*nodes, strict=True)]
            for tails, *nodes in zip(self.tails, slots.tolist(), tokens.tolist(), strict=True)
        ]
        return self._logits(tokens.shape[1])

    def drop(self, row: int) -> None:
        self.rows[row] = self.rows[-1]
        self.rows.pop()

    def insert(self, other: LookupSession) -> None:
        self.rows += other.rows

    def crop(self, lengths: list[int]) -> None:
        for row, length in zip(self.rows, lengths, strict=True):
            row.crop(length)

    def _logits(self, nodes: int) -> Tensor:
        """[B, P, V] for the paths of the frontier; 0 for tokens that followed nowhere."""
        vocabulary, device = self.draft.target.vocab_size, self.draft.target.device
        logits = torch.zeros(len(self.rows), nodes, vocabulary, device=device)
        places, values = [], []
        for b, (row, tails) in enumerate(zip(self.rows, self.tails, strict=True)):
            for node, tail in enumerate(tails):
                shares, mass = row.log_shares(tail)
                first = (b * nodes + node) * vocabulary
                places += [first + token for token in shares]
                values += [share - mass + math.log(vocabulary) for share in shares.values()]
        logits.view(-1)[torch.tensor(places, dtype=torch.long, device=device)] = torch.tensor(
            values, device=device
        )
        return logits
