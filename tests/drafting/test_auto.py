"""The choice at run time, on recorded paths of real drafts: the policy assumes no law that these were made by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clover.drafting import PLAIN_DRAFTER, AutoPolicy, Drafter, FixedPolicy, Policy, Running, StepOutcome
from clover.drafting.auto import Candidate
from clover.tree import TokenTree

RECORDED = Path(__file__).parents[2] / "docs" / "results" / "replay"
PLAIN_SECONDS = 0.010


class Chain:
    """A chain that is never grown: the recorded path says what it accepts."""

    def __init__(self, depth: int):
        self.max_depth, self.max_nodes = depth, depth + 1

    def grow(self, given: Any) -> TokenTree:
        raise AssertionError("nothing is decoded here")


CHAINS = {f"chain:{depth}": Chain(depth) for depth in (1, 2, 4, 8)}


def recorded(pair: str, temperature: float) -> list[list[int]]:
    """Per text: at each token, how many tokens of the draft's best chain are right."""
    found = json.loads((RECORDED / f"paths-{pair}.json").read_text())
    return [[int(c, 36) for c in one["chain"]] for one in found["texts"] if one["temperature"] == temperature]


def poor(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same texts with a draft that is right one time in twelve."""
    rng = Random(1)
    return [[int(rng.random() < 1 / 12) for _ in text] for text in texts]


def make_policy() -> AutoPolicy:
    candidates = {"plain": Candidate("plain", PLAIN_DRAFTER)}
    return AutoPolicy(candidates | {name: Candidate("chain", chain) for name, chain in CHAINS.items()})


def seconds_of(drafter: Drafter, rows: int, per_node: float) -> float:
    drafting = 0.0 if drafter.max_depth == 0 else 0.0008 + 0.0006 * drafter.max_depth
    return PLAIN_SECONDS + drafting + per_node * rows * drafter.max_depth * PLAIN_SECONDS


def run(policy: Policy, texts: Sequence[Sequence[int]], rows: int = 1, per_node: float = 0.02) -> float:
    """Seconds that all texts take, `rows` at a time; what the policy sees of them is noisy."""
    rng, total = Random(0), 0.0
    for first in range(0, len(texts) - rows + 1, rows):
        batch, at, behind = texts[first : first + rows], [0] * rows, 0
        while live := [row for row in range(rows) if at[row] < len(batch[row])]:
            drafter = policy.choose(Running(len(live), 100))
            step = seconds_of(drafter, len(live), per_node)
            emitted = tuple(1 + min(batch[row][at[row]], drafter.max_depth) for row in live)
            step += 0.00005 * behind * len(live) if drafter.max_depth else 0.0
            noisy = step * rng.lognormvariate(0, 0.06) * (4.0 if rng.random() < 0.02 else 1.0)
            policy.record(
                StepOutcome(len(live), 100, drafter, drafter.max_depth + 1, emitted, noisy, 0.0, behind)
            )
            behind = 0 if drafter.max_depth else behind + 1
            for row, tokens in zip(live, emitted):
                at[row] += tokens
            total += step
    return total


def best_fixed(texts: Sequence[Sequence[int]], **how: Any) -> float:
    return min(run(FixedPolicy(drafter), texts, **how) for drafter in (PLAIN_DRAFTER, *CHAINS.values()))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("pair", ["recall", "stories", "smollm"])
def test_it_is_near_the_best_fixed_choice(pair: str, temperature: float) -> None:
    texts = recorded(pair, temperature)
    assert run(make_policy(), texts) < 1.08 * best_fixed(texts)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_poor_draft_costs_two_per_cent_at_most(rows: int) -> None:
    texts = poor(recorded("recall", 0.0))[:8]
    plain = run(FixedPolicy(PLAIN_DRAFTER), texts, rows)
    assert run(make_policy(), texts, rows) < plain / 0.98


def test_plain_decoding_leads_where_nodes_are_dear() -> None:
    texts = 3 * recorded("recall", 0.8)
    how = {"rows": 4, "per_node": 0.5}
    assert run(make_policy(), texts, **how) < run(FixedPolicy(PLAIN_DRAFTER), texts, **how) / 0.98


def test_it_follows_a_text_that_changes() -> None:
    good, bad = recorded("recall", 0.0)[:6], poor(recorded("recall", 0.0)[:6])
    for texts in ([*good, *bad], [*bad, *good]):
        halves = best_fixed(texts[:6]) + best_fixed(texts[6:])
        assert run(make_policy(), texts) < 1.2 * halves


def test_a_good_draft_is_used_at_once() -> None:
    policy = make_policy()
    run(policy, recorded("recall", 0.0)[:1])
    assert policy.leader.startswith("chain:")
