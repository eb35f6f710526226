"""The choice at run time against the best fixed tree, on recorded paths and in made-up worlds."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.replay import PATHS, Pair, kinds, replay
from clover.drafting import AutoTree, LookupDrafter, PlainDrafter, StepOutcome, UpcomingStep, parse_tree
from clover.drafting.tuning import Choice, Tuning
from clover.drafts.ngrams import RepeatingText
from clover.errors import UserError
from clover.tree import TreeShape

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
    return Tuning("cpu", "float32", "", 1, "", {}, None, False, "", (), choices)


# -- regret against the best fixed tree ------------------------------------------------------------------------------


@pytest.mark.parametrize("tuned", [False, True], ids=["untuned", "tuned"])
@pytest.mark.parametrize("size", [1, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_recorded_texts_take_hardly_longer_than_with_the_best_fixed_tree(
    name: str, size: int, tuned: bool
) -> None:
    found = replay(PAIRS[name], tuned, kinds(PAIRS[name])["sampled"], size)
    assert found["auto"] < 1.05 * found["best"]


def speed_of(policy: Any, tokens: Callable[[Any], int], seconds: Callable[[Any], float], steps: int) -> float:
    """Tokens per second of a policy in a made-up world."""
    written, passed = 0, 0.0
    for _ in range(steps):
        drafter = policy.choose(UpcomingStep(1))
        accepted, took = tokens(drafter), seconds(drafter)
        policy.record(StepOutcome(drafter.max_nodes, (1 + accepted,), took, 0))
        written, passed = written + 1 + accepted, passed + took
    return written / passed


@pytest.mark.parametrize("seed", range(4))
def test_regret_is_small_whatever_trees_accept_and_cost(seed: int) -> None:
    """Costs differ by a factor of ten, rates between 0 and 1; each step's time has 6 % of noise."""
    rng = Random(seed)
    rate, tree_rate, per_depth, tree_cost = rng.random(), rng.random(), rng.random() / 3, 1 + rng.random()

    def tokens(drafter: Any) -> int:
        tree = drafter.max_nodes > drafter.max_depth + 1
        chance = tree_rate if tree else rate
        return next((n for n in range(drafter.max_depth) if rng.random() > chance), drafter.max_depth)

    def seconds(drafter: Any) -> float:
        tree = drafter.max_nodes > drafter.max_depth + 1
        cost = (
            tree_cost if tree else 1.0 + (0.2 + per_depth * drafter.max_depth if drafter.max_depth else 0.0)
        )
        return cost * rng.lognormvariate(0, 0.06)

    names = ["plain", *(f"chain:{depth}" for depth in (1, 2, 4, 6, 8)), "own"]
    best = max(speed_of(parse_tree(name).policy(draft()), tokens, seconds, 1500) for name in names)
    assert speed_of(parse_tree("auto").policy(draft()), tokens, seconds, 10_000) > 0.93 * best


def test_a_tree_leads_again_after_a_text_that_suits_no_draft() -> None:
    policy, rng, led = AutoTree().policy(draft()), Random(0), list[str]()
    for step in range(3000):
        drafter = policy.choose(UpcomingStep(1))
        led.append(policy.leader)
        tree, depth = drafter.max_nodes > drafter.max_depth + 1, drafter.max_depth
        rate = 0.05 if 300 <= step < 600 else 0.9 if tree else 0.6
        right = next((n for n in range(depth) if rng.random() > rate), depth)
        seconds = 1.3 if tree else 1.2 + 0.1 * depth if depth else 1.0
        policy.record(StepOutcome(drafter.max_nodes, (1 + right,), seconds, 0))
    assert led[599] == "plain" != led[-1]


# -- what is chosen between --------------------------------------------------------------------------------------------


def test_the_fastest_of_the_tuning_leads_per_batch_size() -> None:
    policy = AutoTree().policy(
        draft(),
        tuning(
            Choice(1, "chain:4", 3.0, 0.015, 200.0),
            Choice(1, "plain", 1.0, 0.010, 100.0),
            Choice(8, "plain", 1.0, 0.016, 500.0),
            Choice(8, "chain:2", 2.2, 0.064, 275.0),
        ),
    )
    for rows, expected in ((1, "chain:4"), (8, "plain"), (7, "plain"), (64, "plain"), (2, "chain:4")):
        policy.choose(UpcomingStep(rows))
        assert policy.leader == expected


@pytest.mark.parametrize(("sizes", "leader"), [((3, 4), "plain"), ((4, 5), "plain"), ((3, 5), "chain:4")])
def test_a_group_of_batch_sizes_knows_the_costs_nearest_to_its_power_of_two(
    sizes: tuple[int, int], leader: str
) -> None:
    """Sizes 3 to 5 are one group. Plain steps are faster in a batch of 4, the chain is in one of 3 or 5."""
    choices = [
        Choice(size, tree, tau, seconds, 1.0)
        for size in sizes
        for tree, tau, seconds in (
            ("plain", 1.0, 0.010),
            ("chain:4", 3.0, 0.045 if size == 4 else 0.015),
        )
    ]
    policy = AutoTree().policy(draft(), tuning(*choices))
    policy.choose(UpcomingStep(4))
    assert policy.leader == leader


def test_a_tuning_without_chains_keeps_its_trees() -> None:
    choices = Choice(1, "clover2", 4.0, 0.015, 260.0), Choice(1, "plain", 1.0, 0.010, 100.0)
    policy = AutoTree().policy(draft(), tuning(*choices))
    policy.choose(UpcomingStep(1))
    assert policy.leader == "clover2"


def test_steps_in_which_all_are_decoded_plainly_teach_nothing() -> None:
    """Also while plain decoding is probed, since a chain leads: the last text that is drafted for leaves then."""
    policy, plain = AutoTree().policy(draft()), 0
    for _ in range(2000):
        drafter = policy.choose(UpcomingStep(2))
        depth = drafter.max_depth
        if policy.leader != "plain" and not depth:
            plain += 1
            policy.record(StepOutcome(1, (), 5.0, 0))
        dear = drafter.max_nodes > depth + 1  # a tree; so plain decoding is what is probed
        policy.record(StepOutcome(drafter.max_nodes, (1 + depth,) * 2, 9.0 if dear else 1.0 + 0.1 * depth, 0))
    assert plain and policy.leader != "plain"


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
        upcoming = UpcomingStep(1, texts=lambda: [text])
        drafter = policy.choose(upcoming)
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
        plain = isinstance(drafter := policy.choose(UpcomingStep(rows)), PlainDrafter)
        probes += not plain
        policy.record(StepOutcome(drafter.max_nodes, (1 if plain else 2,) * rows, 1.0 if plain else 4.0, 0))
    assert probes < 10
