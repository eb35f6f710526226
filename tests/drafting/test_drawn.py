"""Draws from the draft: their distribution, whom they depend on, and what is not drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
import torch
from scipy.stats import chi2

from clover.drafting import DrawnDrafter, DrawnTree, StaticDrafter
from clover.sampling import Sampler, SamplingParams
from clover.tree import CLOVER2_TREE, TokenTree, TreeShape
from tests.drafting.scripted import (
    ScriptedDraft,
    ScriptedSession,
    draft_input,
    fake_target,
    grown,
    paths_of,
    random_opinion,
)

VOCAB = 5
PROBS = torch.tensor([0.4, 0.05, 0.3, 0.05, 0.2], dtype=torch.float64)
FALSE_ALARM_RATE = 1e-4
SMALL = DrawnTree(TreeShape.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)]))


def sampler_of(params: Sequence[SamplingParams], vocab: int = VOCAB, commits: int = 0) -> Sampler:
    sampler = Sampler(params, [[0]] * len(params), vocab, "cpu")
    ones = torch.ones(len(params), dtype=torch.long)
    for _ in range(commits):
        sampler.commit(ones.unsqueeze(1), ones)
    return sampler


def p_value(outcomes: torch.Tensor, expected: torch.Tensor) -> float:
    counts = outcomes.bincount(minlength=len(expected)).double()
    expected = expected * len(outcomes)
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum().item(), len(counts) - 1))


def draws(rows: int, node: int = 0, commits: int = 0, count: int = 1) -> torch.Tensor:
    sampler = sampler_of(
        [SamplingParams(temperature=1.0, seed=seed) for seed in range(rows)], commits=commits
    )
    return sampler.draw(PROBS.expand(rows, 1, -1), torch.tensor([node]), count)[:, 0]


def test_children_are_drawn_without_replacement() -> None:
    drawn = draws(60_000, count=3)
    orders = list(permutations(range(VOCAB), 3))
    a, b, c = (PROBS[list(tokens)] for tokens in zip(*orders))
    numbers = (drawn * torch.tensor([25, 5, 1])).sum(1)
    index = torch.full((125,), -1)
    index[[25 * x + 5 * y + z for x, y, z in orders]] = torch.arange(len(orders))
    assert p_value(index[numbers], a * b / (1 - a) * c / (1 - a - b)) > FALSE_ALARM_RATE


@pytest.mark.parametrize(("node", "commits"), [(1, 0), (0, 1)])
def test_draws_of_other_nodes_and_other_steps_are_independent(node: int, commits: int) -> None:
    pairs = draws(40_000)[:, 0] * VOCAB + draws(40_000, node, commits)[:, 0]
    assert p_value(pairs, torch.outer(PROBS, PROBS).flatten()) > FALSE_ALARM_RATE


def test_draws_and_tests_are_independent() -> None:
    sampler = sampler_of([SamplingParams(temperature=1.0, seed=seed) for seed in range(40_000)])
    quarter = (sampler.test_numbers(2)[:, 1] * 4).long()
    other = (sampler.test_numbers(2)[:, 0] * 4).long()
    pairs = draws(40_000)[:, 0] * 16 + quarter * 4 + other
    assert p_value(pairs, torch.outer(PROBS, torch.full((16,), 1 / 16).double()).flatten()) > FALSE_ALARM_RATE


def test_the_draft_is_drawn_from_at_each_rows_own_temperature() -> None:
    sampler = sampler_of([SamplingParams(), *(SamplingParams(temperature=t) for t in (0.5, 2.0))])
    logits = torch.randn(3, 2, VOCAB, generator=torch.Generator().manual_seed(0))
    probs = sampler.draft_probs(logits)
    for row, temperature in enumerate((1.0, 0.5, 2.0)):
        torch.testing.assert_close(probs[row], (logits[row].double() / temperature).softmax(-1))


def row_trees(tree: TokenTree) -> list[tuple[object, ...]]:
    assert tree.draws is not None
    return [
        (
            tree.tokens[row].tolist()[1:],
            tree.parents[row].tolist(),
            tree.draws.draft_probs[row].sum(0).tolist(),
        )
        for row in range(len(tree.tokens))
    ]


def test_a_row_draws_alike_in_every_company_and_place() -> None:
    params = [SamplingParams(temperature=0.5 + 0.3 * seed, seed=seed % 3) for seed in range(5)]
    opinion = random_opinion(40, ties=False)
    draft = ScriptedDraft(fake_target(40), lambda text: opinion(text[1:]))
    drafter = DrawnDrafter(draft, DrawnTree(CLOVER2_TREE))  # type: ignore[arg-type]
    together = row_trees(grown(drafter, draft, 5, sampler_of(params, 40)))
    assert len({str(row) for row in together}) == 5
    assert row_trees(grown(drafter, draft, 5, sampler_of(params[::-1], 40))) == together[::-1]
    for row, own in enumerate(params):
        assert row_trees(grown(drafter, draft, 1, sampler_of([own], 40))) == [together[row]]


def test_greedy_rows_take_the_most_probable_tokens() -> None:
    draft = ScriptedDraft(fake_target(40), random_opinion(40, ties=False))
    session = ScriptedSession(draft, [(0,), (2,)])
    logits = torch.stack([draft.opinion(text) for text in session.texts])
    mixed = sampler_of([SamplingParams(), SamplingParams(temperature=1.0)], 40)
    root = torch.zeros(2, dtype=torch.long)
    drafter = DrawnDrafter(draft, SMALL)  # type: ignore[arg-type]
    drawn = drafter.grow(draft_input(session, logits, root, mixed))
    greedy = sampler_of([SamplingParams()] * 2, 40)
    best = StaticDrafter(draft, SMALL.shape).grow(  # type: ignore[arg-type]
        draft_input(ScriptedSession(draft, [(0,), (2,)]), logits, root, greedy)
    )
    assert set(paths_of(drawn, 0)) <= set(paths_of(best, 0))
    assert not torch.equal(drawn.tokens[1], best.tokens[1])
    all_greedy = drafter.grow(draft_input(ScriptedSession(draft, [(0,), (2,)]), logits, root, greedy))
    assert all_greedy.draws is None
    assert torch.equal(all_greedy.tokens, best.tokens)


def test_what_cannot_be_drawn_is_padding() -> None:
    two = torch.tensor([0.0, -torch.inf, 1.0, -torch.inf, -torch.inf])
    draft = ScriptedDraft(
        fake_target(VOCAB), lambda text: two if text[0] == 0 else torch.full((VOCAB,), -torch.inf)
    )
    sampler = sampler_of([SamplingParams(temperature=1.0, seed=seed) for seed in (1, 2)])
    tree = grown(DrawnDrafter(draft, SMALL), draft, 2, sampler)  # type: ignore[arg-type]
    assert tree.parents.tolist() == [[-1, 0, 0, -1, 1, 1, 2], [-1] * 7]
    assert {path[-1] for path in paths_of(tree, 0)} == {0, 2}
    assert tree.draws is not None
    assert tree.draws.children[0].tolist() == [[1, 2, 3], [4, 5, -1], [6, -1, -1]]
    assert tree.draws.draft_probs[1].eq(0).all()
