"""N-gram lookup: what followed the last tokens when they stood in the text before. No training, no weights.

The last n tokens of a path, n from `max_ngram` down to `min_ngram`, are looked up in an index of the committed text;
what followed them there is proposed: by how often it did, then by how recently. All that followed a longer n-gram
stands above all that followed only a shorter one, and that above every other token: each n shares its mass by counts,
and gets together half of what the least of the next longer n got; so do the tokens that followed nowhere.

Shapes: B batch, A committed positions, P frontier nodes, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from clover.drafts.base import DraftModel
from clover.drafts.config import Count, DraftConfig
from clover.drafts.ngrams import NgramIndex
from clover.errors import UserError


class LookupConfig(DraftConfig):
    """Configuration of n-gram lookup: runs of `min_ngram` to `max_ngram` tokens are looked up."""

    model_type = "lookup"
    hidden_state: Literal["post_norm"] = "post_norm"  # of which it reads nothing
    max_ngram: Count = 3
    min_ngram: Count = 1

    def __init__(self, **values: Any):
        super().__init__(**values)
        longest, shortest = self.max_ngram, self.min_ngram
        if shortest > longest:
            raise UserError(f"lookup: min_ngram is {shortest}, which is more than max_ngram, {longest}")
        if self.draft_vocab_size is not None:
            raise UserError("lookup: draft_vocab_size is given; it has no lm_head to read less of")


class LookupDraft(DraftModel):
    """N-gram lookup as a draft model that has no weights."""

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


class LookupSession:
    """N-gram lookup in one running batch: an index per sequence, and the last tokens of each path of the frontier."""

    def __init__(self, draft: LookupDraft, batch_size: int):
        config = draft.config
        self.draft = draft
        self.rows = [NgramIndex(config.min_ngram, config.max_ngram) for _ in range(batch_size)]
        self.ends: list[list[tuple[int, ...]]] = []  # [B][P]

    @property
    def lengths(self) -> list[int]:
        return [len(row.text) for row in self.rows]

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        for row, tokens, count in zip(self.rows, next_tokens.tolist(), counts, strict=True):
            for token in tokens[:count]:
                row.append(token)
        self.ends = [[row.end()] for row in self.rows]
        return self._logits(1)[:, 0]

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        longest = self.draft.config.max_ngram
        self.ends = [
            [(*ends[slot], token)[-longest:] for slot, token in zip(*nodes, strict=True)]
            for ends, *nodes in zip(self.ends, slots.tolist(), tokens.tolist(), strict=True)
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

    def copy_row(self, row: int) -> LookupSession:
        copied = copy.copy(self)
        copied.rows = [copy.deepcopy(self.rows[row])]
        return copied

    def fill_row(self, row: int, other: LookupSession, length: int) -> None:
        self.rows[row] = copy.deepcopy(other.rows[0])
        self.rows[row].crop(length)

    @contextmanager
    def first_rows(self, rows: int) -> Iterator[None]:
        aside, self.rows = self.rows[rows:], self.rows[:rows]
        try:
            yield
        finally:
            self.rows += aside

    def _logits(self, nodes: int) -> Tensor:
        """[B, P, V] for the paths of the frontier; 0 for tokens that followed nowhere."""
        vocabulary, device = self.draft.target.vocab_size, self.draft.target.device
        logits = torch.zeros(len(self.rows), nodes, vocabulary, device=device)
        places, values = [], []
        for b, (row, ends) in enumerate(zip(self.rows, self.ends, strict=True)):
            for node, end in enumerate(ends):
                shares, mass = row.log_shares(end)
                first = (b * nodes + node) * vocabulary
                places += [first + token for token in shares]
                values += [share - mass + math.log(vocabulary) for share in shares.values()]
        index = torch.tensor(places, dtype=torch.long, device=device)
        logits.view(-1)[index] = torch.tensor(values, device=device)
        return logits
