"""Clover-1's dynamic tree against the same rules in plain Python, row by row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from clover.drafting import BudgetDrafter, BudgetTree
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

ROWS = 12


def slow_tree(
    opinion: Callable[[Text], torch.Tensor], text: Text, tree: BudgetTree, depths: int
) -> list[Text]:
    level, left, kept = [((), 1.0)], tree.budget, []
    for _ in range(depths):
        candidates = []
        for path, joint in level:
            logits = opinion(text + path)
            probs = (logits - logits.logsumexp(-1)).exp().nan_to_num(0.0).tolist()
            ranked = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
            mass = 0.0
            for rank, token in enumerate(ranked):
                mass += probs[token]
                if rank == 0 or (mass <= tree.mass + 1e-6 and probs[token] >= 0.25 * probs[ranked[0]]):
                    candidates.append(((*path, token), joint * probs[token]))
        level = sorted(candidates, key=lambda candidate: -candidate[1])[:left]
        left -= len(level)
        kept += [path for path, _ in level]
    return kept


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("vocab", "tree"), [
    (7, BudgetTree(4)), (50, BudgetTree(4)), (50, BudgetTree(12, 0.95)), (50, BudgetTree(1)), (300, BudgetTree(9, 0.5)),
    (5, BudgetTree(20, 1.0)),
])  # fmt: skip
def test_trees_are_those_of_the_rules(vocab: int, tree: BudgetTree, ties: bool) -> None:
    shapes = set()
    for seed in range(5):
        draft = ScriptedDraft(fake_target(vocab), random_opinion(vocab, ties, seed), max_depth=5)
        drafter = BudgetDrafter(draft, tree)  # type: ignore[arg-type]
        found = grown(drafter, draft, ROWS)
        assert found.tokens.shape[1] <= drafter.max_nodes
        assert found.max_depth == drafter.max_depth == min(5, tree.budget)
        for row in range(ROWS):
            expected = slow_tree(draft.opinion, (row,), tree, drafter.max_depth)
            assert paths_of(found, row) == expected
            shapes.add(tuple(sorted(map(len, expected))))
    assert tree.budget == 1 or len(shapes) > 3


@pytest.mark.parametrize("tree", [BudgetTree(4), BudgetTree(12, 0.95)])
def test_sampled_rows_follow_the_rules_with_the_numbers_of_the_targets_choices(tree: BudgetTree) -> None:
    draft = ScriptedDraft(fake_target(50), random_opinion(50, ties=False), max_depth=5)
    found = grown(BudgetDrafter(draft, tree), draft, len(SAMPLED), sampler_of(SAMPLED, 50))  # type: ignore[arg-type]
    for row, own in enumerate(SAMPLED):
        assert paths_of(found, row) == slow_tree(raced(draft.opinion, own), (row,), tree, found.max_depth)


def test_a_sure_draft_gives_a_chain_and_an_unsure_one_a_fan() -> None:
    sure, unsure = torch.tensor([0.0, 9.0, 0.0, 0.0]), torch.tensor([2.0, 2.0, 2.0, 2.0])
    for logits, paths in ((sure, [(1,), (1, 1), (1, 1, 1)]), (unsure, [(0,), (1,), (2,)])):
        draft = ScriptedDraft(fake_target(4), lambda _, logits=logits: logits)
        found = grown(BudgetDrafter(draft, BudgetTree(3)), draft, 2)  # type: ignore[arg-type]
        assert paths_of(found, 0) == paths_of(found, 1) == paths


def test_the_draft_goes_no_further_than_the_budget() -> None:
    """An unsure draft spends its three nodes at the first depth; it could go down eight."""
    asked: list[int] = []

    def opinion(text: Text) -> torch.Tensor:
        asked.append(len(text))
        return torch.tensor([2.0, 2.0, 2.0, 2.0])

    draft = ScriptedDraft(fake_target(4), opinion, max_depth=8)
    found = grown(BudgetDrafter(draft, BudgetTree(3)), draft, 1)  # type: ignore[arg-type]
    assert len(paths_of(found, 0)) == 3 and set(asked) == {1}


def test_the_quarter_rule_binds_within_the_mass() -> None:
    probs = torch.tensor([0.5, 0.124, 0.126, 0.25])
    draft = ScriptedDraft(fake_target(4), lambda _: probs.log(), max_depth=1)
    found = grown(BudgetDrafter(draft, BudgetTree(4, 1.0)), draft, 1)  # type: ignore[arg-type]
    assert paths_of(found, 0) == [(0,), (3,), (2,)]


def test_a_draft_without_an_opinion_drafts_nothing() -> None:
    nothing = torch.full((6,), -torch.inf)
    opinion = random_opinion(6, ties=False)
    draft = ScriptedDraft(
        fake_target(6), lambda text: nothing if text[0] == 1 or len(text) == 2 else opinion(text)
    )
    found = grown(BudgetDrafter(draft, BudgetTree(4)), draft, 3)  # type: ignore[arg-type]
    assert paths_of(found, 1) == []
    assert all(len(path) == 1 for row in (0, 2) for path in paths_of(found, row))
    assert found.depths[1].max() == 0
