"""The tokens that a cache stores beside keys and values, against lists, through every change of the batch."""

from __future__ import annotations

import random

import pytest
import torch

from clover.cache import KVCache
from clover.engine.compiled.cache import FixedCache


class Texts:
    """A cache with tokens, and the same tokens as lists."""

    def __init__(self, rows: int) -> None:
        self.cache = KVCache.new((0, 1, 1, 1), rows, 2, torch.zeros(()), tokens=True)
        self.lists = list[list[int]]([[] for _ in range(rows)])

    def fixed(self) -> FixedCache:
        return FixedCache(self.cache.storage, self.cache.row_lengths(len(self.lists)), 100)

    def commit(self, rng: random.Random, counts: list[int]) -> None:
        new = [[rng.randrange(1, 70_000) for _ in range(max(counts))] for _ in counts]
        self.cache.begin(max(counts))
        self.cache.write_tokens(torch.tensor(new))
        self.cache.commit(counts)
        for text, some, count in zip(self.lists, new, counts, strict=True):
            text += some[:count]

    def check(self) -> None:
        for row, text in enumerate(self.lists):
            for cache in (self.cache, self.fixed()):
                assert cache.tokens[row, : len(text)].tolist() == text
                assert cache.last_tokens(2)[row].tolist() == [-1, -1, *text][-2:]


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
                texts.cache.drop(dropped)
                texts.lists[dropped] = texts.lists[-1]
                texts.lists.pop()
            case 1 if rows < 6:
                others = Texts(2)
                others.commit(rng, [rng.randrange(4), rng.randrange(1, 9)])
                texts.cache.insert(others.cache)
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
    fixed = texts.fixed()
    fixed.begin(3)
    fixed.write_tokens(torch.tensor([[5, 6, 7], [8, 9, 10]]))
    assert texts.cache.tokens[0, :7].tolist() == [*texts.lists[0], 5, 6, 7]
    assert texts.cache.tokens[1, :4].tolist() == [*texts.lists[1], 8, 9, 10]
