"""Where a text stood before, held against a search through all of it; and the chains that copy from there."""

from __future__ import annotations

import random

import pytest
import torch

from clover.drafting import Copier, Repetition
from clover.drafting.repetition import SHORTEST_MATCH


def matches(text: list[int]) -> dict[int, int]:
    """Of each place after which the text could go on as before: how many tokens before it are those at the end."""
    found = {}
    for place in range(1, len(text)):
        length = 0
        while length < place and text[place - 1 - length] == text[-1 - length]:
            length += 1
        if length >= SHORTEST_MATCH:
            found[place] = min(length, 64)
    return found


def continued(text: list[int], place: int, count: int) -> list[int]:
    """Token by token what a copy from a place says, in a text that grows by it."""
    grown = list(text)
    for at in range(count):
        grown.append(grown[place + at])
    return grown[len(text) :]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tokens", [1, 2, 3, 6])
def test_a_place_is_found_wherever_there_is_one(seed: int, tokens: int) -> None:
    rng = random.Random(seed)
    text = [rng.randrange(tokens) for _ in range(100)]
    repetition = Repetition(text[:20])
    for end in range(20, len(text)):
        known = matches(text[:end])
        assert repetition.text == text[:end]
        assert (repetition.length > 0) == bool(known)
        possible = [continued(text[:end], place, 9) for place, n in known.items() if n == repetition.length]
        assert repetition.copy(9) in (possible or [[]])
        repetition.extend(text[end : end + 1])


def test_a_place_is_followed_as_long_as_it_holds() -> None:
    repetition = Repetition([1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 7, 8, 1, 2, 3])
    assert repetition.copy(2) == [7, 8], "the last of two places"
    repetition.extend([4])
    assert (repetition.length, repetition.copy(2)) == (4, [5, 6])
    repetition.extend([5, 6, 9])
    assert (repetition.length, repetition.copy(4)) == (7, [1, 2, 3, 7])
    repetition.extend([0])
    assert (repetition.length, repetition.copy(4)) == (0, [])


def test_what_was_right_is_told_of_every_token_after_the_prompt() -> None:
    repetition = Repetition([5, 6, 7, 5, 6, 7])
    assert repetition.judged == []
    repetition.extend([5, 6, 0])
    assert repetition.judged == [(3, True), (4, True), (5, False)]
    assert repetition.length == 0


def test_copies_run_into_themselves() -> None:
    assert Repetition([4, 4, 4, 4]).copy(5) == [4] * 5
    assert Repetition([1, 2, 1, 2, 1]).copy(4) == [2, 1, 2, 1]
    assert Repetition([1, 2]).copy(4) == []


def test_rows_that_do_not_repeat_themselves_or_have_no_room_get_no_nodes() -> None:
    repeating, other = Repetition([1, 2, 3, 9, 1, 2, 3]), Repetition([1, 2, 3, 4])
    root = torch.tensor([3, 4, 3])
    tree = Copier(4).grow(root, [repeating, other, None])
    assert tree.tokens[0].tolist() == [3, 9, 1, 2, 3]
    assert tree.tokens[:, 0].tolist() == root.tolist()
    assert tree.parents.tolist() == [[-1, 0, 1, 2, 3], [-1] * 5, [-1] * 5]
    assert Copier(4).grow(root[:1], [repeating]).depths.tolist() == [[0, 1, 2, 3, 4]]
