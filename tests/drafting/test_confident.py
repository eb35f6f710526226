"""Chains that end early against the same rule in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
import torch

from clover.drafting import ConfidentChain, ConfidentDrafter
from clover.tree import TokenTree
from tests.drafting.scripted import (
    SAMPLED,
    ScriptedDraft,
    Text,
    fake_target,
    grown,
    raced,
    random_opinion,
    sampler_of,
)

VOCAB, DEPTHS = 12, 6
Opinion = Callable[[Text], torch.Tensor]


def slow_chains(opinions: list[Opinion], chain: ConfidentChain) -> list[list[int]]:
    texts = [[row] for row in range(len(opinions))]
    joint = [1.0] * len(opinions)
    for _ in range(min(chain.depth, DEPTHS)):
        for row, opinion in enumerate(opinions):
            probs = opinion(tuple(texts[row])).double().softmax(-1).nan_to_num(0.0)
            token = int(probs.argmax())
            joint[row] *= float(probs[token])
            texts[row].append(token)
        if fmean(joint) < chain.least:
            break
    return [text[1:] for text in texts]


def drafted(draft: ScriptedDraft, chain: ConfidentChain, rows: int) -> TokenTree:
    return grown(ConfidentDrafter(draft, chain), draft, rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 3])
def test_chains_are_those_of_the_rule(rows: int) -> None:
    lengths = set()
    for seed in range(12):
        draft = ScriptedDraft(fake_target(VOCAB), random_opinion(VOCAB, False, seed), max_depth=DEPTHS)
        for chain in (ConfidentChain(4, 0.05), ConfidentChain(9, 0.01), ConfidentChain(9, 0.3)):
            found = drafted(draft, chain, rows)
            expected = slow_chains([draft.opinion] * rows, chain)
            assert found.tokens[:, 1:].tolist() == expected
            nodes = found.tokens.shape[1]
            assert found.parents.tolist() == [list(range(-1, nodes - 1))] * rows
            lengths.add(nodes - 1)
    assert {4, DEPTHS} < lengths


def test_sampled_rows_count_by_the_numbers_of_the_race() -> None:
    for seed in range(6):
        draft = ScriptedDraft(fake_target(50), random_opinion(50, False, seed), max_depth=DEPTHS)
        chain = ConfidentChain(5, 0.3)
        drafter = ConfidentDrafter(draft, chain)  # type: ignore[arg-type]
        found = grown(drafter, draft, len(SAMPLED), sampler_of(SAMPLED, 50))
        assert found.tokens[:, 1:].tolist() == slow_chains(
            [raced(draft.opinion, own) for own in SAMPLED], chain
        )


def test_where_no_token_is_possible_the_chain_ends() -> None:
    draft = ScriptedDraft(fake_target(VOCAB), lambda _: torch.full((VOCAB,), -torch.inf), max_depth=DEPTHS)
    assert drafted(draft, ConfidentChain(5, 0.01), 2).tokens.shape == (2, 2)


def test_it_is_no_longer_than_the_draft_is_deep() -> None:
    sure = torch.full((VOCAB,), -100.0)
    sure[3] = 100.0
    draft = ScriptedDraft(fake_target(VOCAB), lambda _: sure, max_depth=DEPTHS)
    for depth, longest in ((3, 3), (40, DEPTHS)):
        drafter = ConfidentDrafter(draft, ConfidentChain(depth, 0.5))  # type: ignore[arg-type]
        assert (drafter.max_depth, drafter.max_nodes) == (longest, longest + 1)
        assert grown(drafter, draft, 1).tokens.tolist() == [[0, *[3] * longest]]
