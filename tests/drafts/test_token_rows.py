"""Tokens beside a cache, against lists, through every change of the batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from clover.cache import KVCache
from clover.drafts.token_rows import TokenRows
from clover.engine.compiled.cache import FixedCache


class Texts:
    """A cache without keys and values, its tokens, and the same tokens as lists."""

    def __init__(self, rows: int) -> None:
        self.cache = KVCache.new((0, 1, 1, 1), rows, 2, torch.zeros(()))
        self.tokens, self.lists = TokenRows.new(self.cache), list[list[int]]([[] for _ in range(rows)])

    def commit(self, rng: random.Random, counts: list[int]) -> None:
        new = [[rng.randrange(1, 70_000) for _ in range(max(counts))] for _ in counts]
        self.cache.begin(max(counts))
        self.tokens.fit(self.cache)
        self.tokens.write(self.cache, torch.tensor(new))
        self.cache.commit(counts)
        for text, some, count in zip(self.lists, new, counts, strict=True):
            text += some[:count]

    def check(self) -> None:
        cache: Any = FixedCache(*self.cache.storage, self.cache.row_lengths(len(self.lists)), 100)
        for row, text in enumerate(self.lists):
            assert self.tokens.storage[row, : len(text)].tolist() == text
            for each in (self.cache, cache):
                assert self.tokens.last(each, 2)[row].tolist() == [-1, -1, *text][-2:]


@pytest.mark.parametrize("seed", range(8))
def test_every_row_has_its_text_after_any_changes(seed: int) -> None:
    rng = random.Random(seed)
    texts = Texts(3)
    texts.check()
    for _ in range(60):
        rows = len(texts.lists)
        match rng.randrange(5):
            case 0 if rows > 1:
                dropped = rng.randrange(rows)
                texts.tokens.copy(rows - 1, dropped)
                texts.cache.drop(dropped)
                texts.lists[dropped] = texts.lists[-1]
                texts.lists.pop()
                texts.tokens.fit(texts.cache)
            case 1 if rows < 6:
                others = Texts(2)
                others.commit(rng, [rng.randrange(4), rng.randrange(1, 9)])
                texts.cache.insert(others.cache)
                texts.tokens.fit(texts.cache)
                texts.tokens.insert(others.tokens, 2, rows, others.cache.length)
                texts.lists += others.lists
            case 2:
                texts.lists = [text[: rng.randint(0, len(text))] for text in texts.lists]
                texts.cache.crop([len(text) for text in texts.lists])
            case 3:
                texts.commit(rng, [3] * rows)
            case _:
                texts.commit(rng, [*(rng.randrange(5) for _ in range(rows - 1)), rng.randrange(1, 6)])
        texts.check()


def test_writing_in_fixed_shape_begins_at_each_row_s_length() -> None:
    texts = Texts(2)
    texts.commit(random.Random(0), [4, 1])
    texts.cache.begin_fixed(3, 3)
    texts.tokens.fit(texts.cache)
    fixed = FixedCache(*texts.cache.storage, texts.cache.row_lengths(2), 100)
    texts.tokens.write(fixed, torch.tensor([[5, 6, 7], [8, 9, 10]]))
    assert texts.tokens.storage[0, :7].tolist() == [*texts.lists[0], 5, 6, 7]
    assert texts.tokens.storage[1, :4].tolist() == [*texts.lists[1], 8, 9, 10]
