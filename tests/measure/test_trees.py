"""Trees found by counting are the best there are, and their τ is what the engine would see."""

from itertools import combinations, product
from random import Random

import pytest

from clover.measure.trees import (
    accepted,
    accepted_steps,
    best_tree,
    count_starts,
    exact_tau,
    most_frequent,
    worth_timing,
)
from clover.tree import CLOVER2_TREE, TreeShape

RANKS, DEPTH = 3, 3
ALL_PATHS = [path for depth in range(1, DEPTH + 1) for path in product(range(RANKS), repeat=depth)]


def made_up_texts(seed: int) -> list[list[tuple[int, ...]]]:
    """Rank paths of a draft that is right less often the deeper it goes."""
    rng = Random(seed)

    def path() -> tuple[int, ...]:
        ranks = [rng.choices((0, 1, 2, 9), (5, 2, 1, 3))[0] for _ in range(DEPTH)]
        return tuple(ranks[: ranks.index(9)] if 9 in ranks else ranks)

    return [[path() for _ in range(rng.randint(1, 30))] for _ in range(4)]


def trees_of(size: int, max_depth: int) -> list[frozenset[tuple[int, ...]]]:
    """Every tree of so many draft tokens."""
    paths = [path for path in ALL_PATHS if len(path) <= max_depth]
    return [
        frozenset(nodes)
        for nodes in combinations(paths, size)
        if all(path[:-1] in nodes for path in nodes if len(path) > 1)
    ]


def walked(texts: list[list[tuple[int, ...]]], shape: TreeShape) -> float:
    """τ, walked node by node on the shape itself."""
    steps = tokens = 0
    for paths in texts:
        at = 0
        while at < len(paths):
            node, length = 0, 0
            for rank in paths[at]:
                children = [n for n, parent in enumerate(shape.parents) if parent == node and n]
                node = next((n for n in children if shape.ranks[n] == rank), -1)
                if node < 0:
                    break
                length += 1
            emitted = min(length + 1, len(paths) - at)
            tokens, steps, at = tokens + emitted, steps + 1, at + emitted
    return tokens / steps


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_no_tree_of_the_size_accepts_more(size: int, max_depth: int) -> None:
    for seed in range(3):
        positions = [path for paths in made_up_texts(seed) for path in paths]
        found = most_frequent(count_starts(positions), max_depth)[:size]
        if len(found) < size:
            assert len(trees_of(size, max_depth)) == 0 or max_depth == 1
            continue
        most = max(sum(accepted(path, tree) for path in positions) for tree in trees_of(size, max_depth))
        assert sum(accepted(path, frozenset(found)) for path in positions) == most


def test_tau_is_that_of_walking_the_tree() -> None:
    texts = made_up_texts(5)
    for size in (1, 2, 5, 9, 14):
        for max_depth in (1, 2, 3):
            shape = best_tree(texts, size, max_depth)
            if shape is not None:
                assert shape.budget == size and shape.max_depth <= max_depth
                assert exact_tau(texts, frozenset(shape.paths[1:])) == walked(texts, shape)
    assert exact_tau(texts, frozenset()) == 1.0
    assert exact_tau([], frozenset({(0,)})) == 1.0


def test_choosing_anew_by_the_steps_taken_raises_tau() -> None:
    raised = 0
    for seed in range(20):
        texts = made_up_texts(seed)
        likely = most_frequent(count_starts(path for paths in texts for path in paths))
        for size in (2, 4, 6):
            first = exact_tau(texts, frozenset(likely[:size]))
            found = best_tree(texts, size, DEPTH)
            assert found is not None and walked(texts, found) >= first
            raised += walked(texts, found) > first
    assert raised > 0


def test_steps_start_after_what_was_accepted_and_one_more() -> None:
    paths = [(0, 0), (0,), (1,), (0, 1), ()]
    assert accepted_steps([paths], frozenset({(0,), (0, 0)})) == [(0, 0), (0, 1)]
    assert accepted_steps([paths], frozenset({(1,)})) == [(0, 0), (0,), (1,), ()]


def test_a_chain_is_found_where_the_first_choices_are_right() -> None:
    texts = [[(0, 0)] * 8 + [(0,), ()]]
    assert best_tree(texts, 2, 3) == TreeShape.chain(2)
    assert best_tree(texts, 4, 3) is None


def test_what_is_timed_holds_chains_the_own_tree_and_the_best_of_several_sizes() -> None:
    texts = made_up_texts(7)
    found = worth_timing(texts, CLOVER2_TREE.cut(DEPTH), DEPTH, batch_size=1)
    assert {"chain:1", "chain:2", "chain:3"} < {one.spec for one in found}
    assert CLOVER2_TREE.cut(DEPTH) in {one.shape for one in found}
    assert {4, 8, 16, 32, 64} - {one.shape.budget for one in found} <= {64}
    assert len({one.shape for one in found}) == len(found)
    for one in found:
        assert one.shape.max_depth <= DEPTH and one.tau == walked(texts, one.shape)


def test_large_batches_have_small_trees() -> None:
    trees = worth_timing(made_up_texts(7), TreeShape.chain(2), DEPTH, batch_size=64)
    assert max(one.shape.budget for one in trees) == 8


def test_a_draft_that_is_never_right_is_timed_with_trees_of_all_sizes() -> None:
    found = worth_timing([[(), ()]], TreeShape.chain(1), 3, batch_size=1)
    assert {4, 8, 16, 32, 64} <= {one.shape.budget for one in found}
    assert {one.tau for one in found} == {1.0}
    assert {one.shape.max_depth for one in worth_timing([], TreeShape.chain(1), 1, 1)} == {1}


def test_no_tree_is_wider_than_the_tokens_that_the_draft_knows() -> None:
    found = worth_timing([[(), ()]], TreeShape.chain(1), 3, batch_size=1, width=4)
    assert max(max(one.shape.ranks) for one in found) == 3
