"""A draft that knows the answer, or half of it, and so drives every way a tree can be accepted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from types import SimpleNamespace

import torch
from torch import Tensor

from clover.target import TargetModel


class OracleDraft:
    """Proposes the token that really follows at a rank drawn from 0 … `spread`, and noise at the other ranks.

    Args:
        texts: per row, prompt and continuation as plain decoding wrote it.
        spread: 0 puts the right token first always; larger values put it further down, or out of the tree.
    """

    max_depth = 8
    d2t = session_tokens = None
    usable = True

    def __init__(self, target: TargetModel, texts: list[list[int]], spread: int = 2):
        self.target, self.texts, self.spread = target, texts, spread
        self.config = SimpleNamespace(hidden_state="post_norm")

    def for_inference(self, full_precision: bool = False) -> OracleDraft:
        return self

    def new_session(self, batch_size: int, capacity: int) -> OracleSession:
        assert batch_size == len(self.texts)
        return OracleSession(self)

    @cache  # noqa: B019
    def opinion(self, row: int, at: int) -> Tensor:
        """Logits [V] for token `at` of a row."""
        rng = Random(7919 * row + at)
        order = rng.sample(range(self.target.vocab_size), self.target.vocab_size)
        if at < len(self.texts[row]):
            order.remove(self.texts[row][at])
            order.insert(rng.randint(0, self.spread), self.texts[row][at])
        logits = torch.empty(len(order))
        logits[torch.tensor(order)] = -torch.arange(len(order), dtype=torch.float32)
        return logits


def texts_of_rows(prompts: Iterable[Sequence[int]], new: Iterable[Sequence[int]]) -> list[list[int]]:
    """Prompts and what followed, in the order of a batch that starts with all of them: longest prompt first."""
    ordered = sorted(zip(prompts, new, strict=True), key=lambda text: -len(text[0]))
    return [[*prompt, *tokens] for prompt, tokens in ordered]


class OracleSession:
    def __init__(self, draft: OracleDraft):
        self.draft = draft
        self.rows = list(range(len(draft.texts)))
        self.lengths = [0] * len(self.rows)
        self.depth = 0

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        assert hidden.shape[:2] == next_tokens.shape
        for row, count in enumerate(counts):
            start = self.lengths[row] + 1
            text = self.draft.texts[self.rows[row]]
            assert next_tokens[row, :count].tolist() == text[start : start + count], (
                "the engine committed other tokens"
            )
            self.lengths[row] += count
        self.depth = 0
        return self._logits(1)[:, 0]

    def advance(self, parents: Tensor, tokens: Tensor) -> Tensor:
        self.depth += 1
        return self._logits(tokens.shape[1])

    def clear(self, row: int, start: int = 0) -> None:
        """Do nothing: it has no states that could be NaN."""

    def drop(self, row: int) -> None:
        self.rows[row], self.lengths[row] = self.rows[-1], self.lengths[-1]
        self.rows.pop()
        self.lengths.pop()

    @contextmanager
    def first_rows(self, rows: int) -> Iterator[None]:
        aside, lengths = self.rows[rows:], self.lengths[rows:]
        del self.rows[rows:], self.lengths[rows:]
        yield
        self.rows += aside
        self.lengths += lengths

    def crop(self, lengths: list[int]) -> None:
        self.lengths = list(lengths)

    def _logits(self, nodes: int) -> Tensor:
        places = zip(self.rows, self.lengths, strict=True)
        logits = [self.draft.opinion(row, length + 1 + self.depth) for row, length in places]
        return torch.stack(logits).unsqueeze(1).expand(-1, nodes, -1)
