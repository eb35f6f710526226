"""EAGLE-2's dynamic tree against the same rules in plain Python, row by row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from clover.drafting import RerankDrafter, RerankTree
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

ROWS = 8


def slow_tree(
    opinion: Callable[[Text], torch.Tensor], text: Text, tree: RerankTree, depths: int
) -> set[Text]:
    frontier, found = [((), 0.0)], []
    for _ in range(depths):
        candidates = []
        for path, score in frontier:
            log_probs = (
                opinion(text + path).log_softmax(-1).nan_to_num(-torch.inf, neginf=-torch.inf).tolist()
            )
            ranked = sorted(range(len(log_probs)), key=lambda token: (-log_probs[token], token))
            candidates += [((*path, token), score + log_probs[token]) for token in ranked[: tree.beam]]
        found += candidates
        frontier = sorted(candidates, key=lambda candidate: -candidate[1])[: min(tree.beam, len(ranked))]
    best = sorted(found, key=lambda candidate: -candidate[1])[: tree.budget]
    return {path for path, score in best if score > -torch.inf}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("vocab", "tree"), [
    (50, RerankTree(60)),
    (50, RerankTree(8, 3, 4)), (4, RerankTree(30)), (50, RerankTree(500, 4, 3)), (9, RerankTree(1)),
    (50, RerankTree(5, 1, 6)),
])  # fmt: skip
def test_trees_are_those_of_the_rules(vocab: int, tree: RerankTree, ties: bool) -> None:
    for seed in range(3):
        draft = ScriptedDraft(fake_target(vocab), random_opinion(vocab, ties, seed), max_depth=5)
        drafter = RerankDrafter(draft, tree)  # type: ignore[arg-type]
        found = grown(drafter, draft, ROWS)
        assert found.tokens.shape[1] == drafter.max_nodes <= 1 + tree.budget
        assert drafter.max_depth == min(5, tree.depth, tree.budget)
        for row in range(ROWS):
            paths = paths_of(found, row)
            assert len(set(paths)) == len(paths)
            assert set(paths) == slow_tree(draft.opinion, (row,), tree, drafter.max_depth)


@pytest.mark.parametrize("tree", [RerankTree(25), RerankTree(8, 3, 4)])
def test_sampled_rows_follow_the_rules_with_the_numbers_of_the_targets_choices(tree: RerankTree) -> None:
    draft = ScriptedDraft(fake_target(50), random_opinion(50, ties=False), max_depth=5)
    found = grown(RerankDrafter(draft, tree), draft, len(SAMPLED), sampler_of(SAMPLED, 50))  # type: ignore[arg-type]
    for row, own in enumerate(SAMPLED):
        expected = slow_tree(raced(draft.opinion, own), (row,), tree, found.max_depth)
        assert set(paths_of(found, row)) == expected


def test_a_sure_draft_keeps_children_with_their_parents() -> None:
    """All probabilities are 0 or 1: a path's nodes are as good as each other, and the tree must stay a tree."""
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf])
    draft = ScriptedDraft(fake_target(3), lambda _: logits)
    found = grown(RerankDrafter(draft, RerankTree(4, 2, 6)), draft, 1)  # type: ignore[arg-type]
    assert paths_of(found, 0) == [(1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)]


def test_a_draft_without_an_opinion_drafts_nothing() -> None:
    nothing, opinion = torch.full((6,), -torch.inf), random_opinion(6, ties=False)
    draft = ScriptedDraft(
        fake_target(6), lambda text: nothing if text[0] == 1 or len(text) == 2 else opinion(text)
    )
    found = grown(RerankDrafter(draft, RerankTree(20)), draft, 3)  # type: ignore[arg-type]
    assert paths_of(found, 1) == []
    assert all(len(path) == 1 for row in (0, 2) for path in paths_of(found, row))
