"""Kept or hashed anew, the numbers of a position are those that its seed and the position alone give."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from clover.sampling import gumbel_cache
from clover.sampling.gumbel_cache import CHOICE, GumbelCache
from clover.sampling.numbers import gumbels

TOKENS = torch.tensor([3, 0, 7, 11])


def reference(seeds: Tensor, greedy: list[bool], positions: Tensor, depths: Tensor) -> Tensor:
    """One number after another, [B, N, V]."""
    numbers = torch.zeros(*depths.shape, len(TOKENS))
    for row, node in torch.cartesian_prod(*(torch.arange(size) for size in depths.shape)).tolist():
        if not greedy[row]:
            position = positions[row] + depths[row, node]
            numbers[row, node] = gumbels(seeds[row, None], CHOICE, position, TOKENS)
    return numbers


@pytest.mark.parametrize("keeps", [True, False])
def test_whatever_was_kept_the_numbers_are_the_same(keeps: bool) -> None:
    rng = random.Random(0)
    seeds, greedy = torch.tensor([5, 6, 7]), [False, True, False]
    positions = torch.tensor([0, 4, 0])
    numbers = GumbelCache(seeds, greedy, TOKENS, keeps)
    for step in range(60):
        deepest = rng.randrange(6)
        numbers.prepare(positions, rng.randrange(deepest + 1))
        numbers.prepare(positions, deepest + 1)
        depths = torch.tensor([[rng.randrange(deepest + 1) for _ in range(3)] for _ in seeds])
        expected = reference(seeds, greedy, positions, depths)
        assert torch.equal(numbers.of_nodes(depths), expected)
        index = torch.randint(len(TOKENS), (*depths.shape, 2))
        assert torch.equal(numbers.of_nodes(depths, index), expected.gather(2, index))
        level = torch.full((len(seeds), 1), deepest)
        assert torch.equal(numbers.of_depth(deepest), reference(seeds, greedy, positions, level))
        positions = positions + torch.tensor([rng.randrange(deepest + 2) for _ in seeds])
        numbers.advance()
        if step % 7 == 3:
            rows = rng.sample(range(len(seeds)), 2)
            seeds, greedy, positions = seeds[rows], [greedy[row] for row in rows], positions[rows]
            numbers.select(rows, seeds, greedy)
        if step % 7 == 5:
            seeds = torch.cat((seeds, torch.tensor([100 + step])))
            greedy, positions = greedy + greedy[:1], torch.cat((positions, torch.tensor([0])))
            numbers.insert(seeds, greedy)


def test_rows_side_by_side_are_read_in_place() -> None:
    """A single row, or rows that are all as far, need no gathering."""
    numbers = GumbelCache(torch.tensor([1, 2]), [False, False], TOKENS)
    numbers.prepare(torch.tensor([9, 9]), 4)
    first, second = numbers.of_depth(2), numbers.of_depth(2)
    assert first.data_ptr() == second.data_ptr()


def test_a_number_is_hashed_once_and_those_of_greedy_rows_never(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(seeds: Tensor, *counters: Tensor) -> Tensor:
        found = gumbels(seeds, *counters)
        hashed.append(found.numel() // len(TOKENS))
        return found

    monkeypatch.setattr(gumbel_cache, "gumbels", counted)
    numbers = GumbelCache(torch.tensor([1, 2, 3]), [False, True, False], TOKENS)
    positions = torch.tensor([0, 0, 0])
    numbers.prepare(positions, 5)
    numbers.prepare(positions, 5)
    assert hashed == [2 * 5]
    for gained in ([2, 5, 0], [1, 1, 4], [7, 1, 1]):
        positions = positions + torch.tensor(gained)
        numbers.advance()
        numbers.prepare(positions, 3)
    # In the first step all three are there; in the others the two rows lack one and two, three and one.
    assert hashed == [2 * 5, 1 + 2, 3 + 1]
