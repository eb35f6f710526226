"""The choice at run time, on recorded paths: what is accepted is what real drafts had right, not the policy's law."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from replay import PATHS, Pair, kinds, replay

from clover.drafting import AutoTree, LookupDrafter, PlainDrafter, Running, StepOutcome
from clover.drafting.auto import RunningAcceptance
from clover.drafting.tuning import Choice, Tuning
from clover.drafts.ngrams import RepeatingText
from clover.errors import UserError
from clover.tree import TreeShape

PLAIN = "plain"
PAIRS = {pair.name: pair for pair in map(Pair, PATHS.glob("paths-*.json"))}


def draft(max_depth: int = 8) -> Any:
    target = SimpleNamespace(device=torch.device("cpu"), vocab_size=100)
    shape = TreeShape.from_paths([[0], [1], [0, 0]])
    return SimpleNamespace(
        max_depth=max_depth,
        d2t=None,
        session_tokens=None,
        target=target,
        config=SimpleNamespace(tree_shape=shape),
    )


def tuning(*choices: Choice) -> Tuning:
    return Tuning("cpu", "float32", "", 1, "", {}, "", (), choices)


# -- on recorded paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuned", [False, True], ids=["untuned", "tuned"])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", ["stories", "smollm"])
def test_a_poor_draft_costs_next_to_nothing(name: str, size: int, tuned: bool) -> None:
    found = replay(PAIRS[name], tuned, kinds(PAIRS[name])["sampled"], size)
    assert found["plain"] / found["auto"] > 0.975


@pytest.mark.parametrize(
    ("kind", "size", "least"), [("greedy", 1, 4.0), ("changing", 1, 2.5), ("sampled", 16, 1.1)]
)
def test_a_good_draft_is_used_from_the_first_steps_on(kind: str, size: int, least: float) -> None:
    found = replay(PAIRS["recall"], False, kinds(PAIRS["recall"])[kind], size)
    assert found["plain"] / found["auto"] > least and found["auto"] < 1.12 * found["best"]


# -- what is expected --------------------------------------------------------------------------------------------------


def test_tokens_are_those_of_the_acceptance_rates() -> None:
    chains = RunningAcceptance(4, rate=0.5, weight=1.0)
    assert chains.tokens(2) == pytest.approx(1 + 0.5 + 0.25)
    for _ in range(300):
        chains.observe([3, 1], 4)  # rates 1, 1/2, 1, 0
    assert [chains.tokens(depth) for depth in (1, 2, 4)] == pytest.approx([2.0, 2.5, 3.0], abs=0.05)


def test_what_was_not_seen_for_long_is_not_expected_to_fail() -> None:
    tree = RunningAcceptance(3, rate=0.5, weight=1.0)
    for _ in range(50_000):  # plain steps, in which nothing is seen
        tree.discount()
    assert tree.tokens(2) == pytest.approx(1 + 0.5 + 0.25)


# -- what is chosen between --------------------------------------------------------------------------------------------


def test_the_fastest_of_the_tuning_leads_per_batch_size() -> None:
    policy = AutoTree().policy(
        draft(),
        tuning(
            Choice(1, "chain:4", 3.0, 0.015, 200.0),
            Choice(1, PLAIN, 1.0, 0.010, 100.0),
            Choice(8, PLAIN, 1.0, 0.016, 500.0),
            Choice(8, "chain:2", 2.2, 0.064, 275.0),
        ),
    )
    for rows, expected in ((1, "chain:4"), (8, PLAIN), (7, PLAIN), (64, PLAIN), (2, "chain:4")):
        policy.choose(Running(rows))
        assert policy.leader == expected


def test_compiled_steps_have_fewer_shapes() -> None:
    depths = [AutoTree().policy(draft(), compiled=compiled).max_depth for compiled in (False, True)]
    assert depths == [31, 15]


def test_a_tuned_tree_that_is_too_deep_is_an_error() -> None:
    with pytest.raises(UserError, match="deep"):
        AutoTree().policy(draft(3), tuning(Choice(1, "chain:4", 3.0, 0.015, 200.0)))


@pytest.mark.parametrize("first", [1.2, 600.0], ids=["as the others", "compiling"])
def test_a_text_that_goes_in_circles_is_looked_up(first: float) -> None:
    text = RepeatingText([1, 2, 3, 4] * 12)
    policy, asked = AutoTree().policy(draft()), 0
    for _ in range(30):
        running = Running(1, texts=lambda: [text])
        drafter = policy.choose(running)
        looked_up = isinstance(drafter, LookupDrafter)
        asked += looked_up
        tokens = 1 + drafter.max_depth if looked_up else 1
        seconds = 1.0 if isinstance(drafter, PlainDrafter) else 2.0
        if looked_up:
            seconds = first if asked == 1 else 1.2
        policy.record(StepOutcome(drafter.max_nodes, (tokens,), seconds, 0))
        text.extend(text.following(tokens))
    assert asked > 20


def test_a_probe_is_paid_for_when_the_batch_changes_before_its_end() -> None:
    policy, probes = AutoTree().policy(draft()), 0
    for step in range(400):
        rows = 11 + step // 2 % 2
        plain = isinstance(drafter := policy.choose(Running(rows)), PlainDrafter)
        probes += not plain
        policy.record(StepOutcome(drafter.max_nodes, (1 if plain else 2,) * rows, 1.0 if plain else 4.0, 0))
    assert probes < 10


def test_the_best_tree_leads_again_after_a_text_that_suits_no_draft() -> None:
    policy, rng, led = AutoTree().policy(draft()), Random(0), list[str]()
    for step in range(3000):
        drafter = policy.choose(Running(1))
        led.append(policy.leader)
        tree, depth = drafter.max_nodes > drafter.max_depth + 1, drafter.max_depth
        rate = 0.05 if 300 <= step < 600 else 0.9 if tree else 0.6
        right = next((n for n in range(depth) if rng.random() > rate), depth)
        seconds = 1.3 if tree else 1.2 + 0.1 * depth if depth else 1.0
        policy.record(StepOutcome(drafter.max_nodes, (1 + right,), seconds, 0))
    assert led[599] == PLAIN and led[299] == led[-1] == "paths:0,1,00"
