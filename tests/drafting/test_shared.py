"""The batch-wide budget against the same rules in plain Python, all rows at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from clover.drafting import Calibration, SharedDrafter
from clover.sampling import SamplingParams
from clover.tree import SharedTree, TokenTree
from tests.drafting.scripted import (
    SAMPLED,
    ScriptedDraft,
    Text,
    fake_target,
    grown,
    paths_of,
    raced,
    random_opinion,
    sampler_of,
)

Opinion = Callable[[Text], torch.Tensor]
ROWS, DEPTHS = 8, 5
CALIBRATION = Calibration((0.3, 2.0), (0.5, -1.5))


def slow_candidates(
    opinion: Opinion, row: int, beam: int, depths: int, calibration: Calibration | None
) -> list[tuple[float, Text]]:
    """Each candidate of a row as (log-probability of its path, path), in the order in which they are found."""
    frontier, found = [((), 0.0)], []
    for depth in range(1, depths + 1):
        children = []
        for path, score in frontier:
            probs = opinion((row, *path)).double().softmax(-1).nan_to_num(0.0)
            ranked = sorted(range(len(probs)), key=lambda token: (-float(probs[token]), token))[:beam]
            if calibration is not None:
                probs = calibration.apply(probs, depth)
            children += [(score + slow_log(float(probs[token])), (*path, token)) for token in ranked]
        found += children
        best = sorted(children, key=lambda child: -child[0])[:beam]
        frontier = [(path, score) for score, path in best]
    return found


def slow_log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def slow_trees(
    opinions: list[Opinion], tree: SharedTree, calibration: Calibration | None = None
) -> list[set[Text]]:
    beam, widest = min(max(tree.budget // 2, 2), 10), max(2 * tree.budget, 6)
    depths = min(DEPTHS, tree.depth, widest)
    contest = []
    for row, opinion in enumerate(opinions):
        own = slow_candidates(opinion, row, beam, depths, calibration)
        own = sorted(own, key=lambda candidate: -candidate[0])[:widest]
        contest += [(score, row, path) for score, path in own]
    won = sorted(contest, key=lambda entry: -entry[0])[: tree.budget * len(opinions)]
    return [
        {path for score, r, path in won if r == row and score > -math.inf} for row in range(len(opinions))
    ]


def scripted(vocab: int, seed: int = 0, ties: bool = False) -> ScriptedDraft:
    return ScriptedDraft(fake_target(vocab), random_opinion(vocab, ties, seed), max_depth=DEPTHS)


def shared(draft: ScriptedDraft, tree: SharedTree, calibration: Calibration | None = None) -> SharedDrafter:
    return SharedDrafter(draft, tree, calibration)  # type: ignore[arg-type]


def trees_of(found: TokenTree) -> list[set[Text]]:
    return [set(paths_of(found, row)) for row in range(len(found.tokens))]


@pytest.mark.parametrize("calibration", [None, CALIBRATION])
@pytest.mark.parametrize("tree", [SharedTree(3), SharedTree(1), SharedTree(8, 3), SharedTree(500, 2)])
def test_trees_are_those_of_the_rules(tree: SharedTree, calibration: Calibration | None) -> None:
    sizes = set()
    for seed in range(3):
        draft = scripted(50, seed)
        drafter = shared(draft, tree, calibration)
        found = grown(drafter, draft, ROWS)
        expected = slow_trees([draft.opinion] * ROWS, tree, calibration)
        assert trees_of(found) == expected
        assert sum(map(len, expected)) <= tree.budget * ROWS
        assert found.tokens.shape[1] <= drafter.max_nodes <= 1 + max(2 * tree.budget, 6)
        sizes.update(map(len, expected))
    assert tree.budget == 500 or len(sizes) > 1


@pytest.mark.parametrize("ties", [False, True])
def test_paths_are_whole_and_given_once(ties: bool) -> None:
    """With equal probabilities everywhere, too, a node is never kept without its parent."""
    for seed in range(5):
        draft = scripted(20, seed, ties)
        for row in (grown_tree := grown(shared(draft, SharedTree(4)), draft, ROWS)).parents.tolist():
            assert all(parent < node for node, parent in enumerate(row))
        for row in range(ROWS):
            paths = paths_of(grown_tree, row)
            assert len(set(paths)) == len(paths)
            assert {path[:-1] for path in paths} <= {(), *paths}


def test_sampled_rows_follow_the_rules_with_the_numbers_of_the_targets_choices() -> None:
    draft = scripted(50)
    found = grown(shared(draft, SharedTree(4)), draft, len(SAMPLED), sampler_of(SAMPLED, 50))
    assert trees_of(found) == slow_trees([raced(draft.opinion, own) for own in SAMPLED], SharedTree(4))


def test_a_row_alone_gets_the_budget_and_no_more() -> None:
    draft = scripted(50)
    found = grown(shared(draft, SharedTree(6)), draft, 1)
    assert found.tokens.shape[1] == 7
    assert len(paths_of(found, 0)) == 6


def test_sure_rows_take_nodes_from_unsure_ones_up_to_twice_their_share() -> None:
    sure, unsure = torch.tensor([20.0, 0.0, 0.0, 0.0]), torch.tensor([0.3, 0.2, 0.1, 0.0])
    draft = ScriptedDraft(fake_target(4), lambda text: sure if text[0] == 0 else unsure, max_depth=9)
    found = grown(shared(draft, SharedTree(3, 9)), draft, 2)
    assert len(paths_of(found, 0)) == 6
    assert len(paths_of(found, 1)) == 0
    doubted = Calibration((0.05,), (-3.0,))  # what the draft is sure of is worth 7 % then
    found = grown(shared(draft, SharedTree(3, 9), doubted), draft, 2)
    assert [len(paths_of(found, row)) for row in range(2)] == [4, 2]


def test_a_draft_without_an_opinion_leaves_its_nodes_to_others() -> None:
    nothing, opinion = torch.full((6,), -torch.inf), random_opinion(6, ties=False)
    draft = ScriptedDraft(fake_target(6), lambda text: nothing if text[0] == 1 else opinion(text))
    for calibration in (None, CALIBRATION):
        found = grown(shared(draft, SharedTree(2), calibration), draft, 3)
        assert paths_of(found, 1) == []
        assert len(paths_of(found, 0)) + len(paths_of(found, 2)) == 6


def test_greedy_and_sampled_rows_compete_too() -> None:
    params = [SamplingParams(), SamplingParams(temperature=2.0, seed=1)]
    draft = scripted(30)
    found = grown(shared(draft, SharedTree(5)), draft, 2, sampler_of(params, 30))
    assert trees_of(found) == slow_trees([raced(draft.opinion, own) for own in params], SharedTree(5))
