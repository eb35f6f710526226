"""The choice at run time, on a simulated engine: what it loses is bounded. Seeds are fixed, no clock is read."""

from __future__ import annotations

from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest

from clover.drafting import ConfidentDrafter, make_policy
from clover.drafting.auto import AutoPolicy, Candidate
from clover.drafting.policy import PrefillOutcome, Running, StepOutcome
from clover.drafting.tuning import PLAIN, Choice, Tuning
from clover.errors import UserError
from clover.tree import CLOVER2_TREE
from tests.drafting.scripted import ScriptedDraft, fake_target, random_opinion
from tests.drafting.simulated import Run, simulate

SEEDS = range(4)
BAD = 6.0  # about a tenth of the tokens are accepted


def runs(tuned: bool, **course: Any) -> list[Run]:
    return [simulate(tuned, 4000, seed=seed, **course) for seed in SEEDS]


def good_then_bad(at: float) -> float:
    return 1.0 if at < 2000 else BAD


def bad_then_good(at: float) -> float:
    return BAD if at < 2000 else 1.0


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_good_draft_is_used_to_within_three_percent(rows: int) -> None:
    for run in runs(True, rows=lambda _: rows):
        assert run.against_best < 1.03
        assert run.against_plain < 0.8


@pytest.mark.parametrize("rows", [1, 8])
def test_with_a_tuning_a_short_run_loses_little(rows: int) -> None:
    assert mean(simulate(True, 250, seed=seed, rows=lambda _: rows).against_best for seed in range(8)) < 1.015


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("tuned", [True, False])
def test_a_bad_draft_costs_at_most_two_percent(rows: int, tuned: bool) -> None:
    for run in runs(tuned, rows=lambda _: rows, difficulty=lambda _: BAD):
        assert run.against_plain < 1.02
        assert run.steps[PLAIN] < sum(run.steps.values()), "never tried again"


@pytest.mark.parametrize("tuned", [True, False])
def test_large_batches_in_which_plain_steps_are_fastest_lose_at_most_two_percent(tuned: bool) -> None:
    for run in runs(tuned, rows=lambda _: 64):
        assert min(run.fixed, key=run.fixed.__getitem__) == PLAIN
        assert run.against_plain < 1.02


def test_without_tuning_the_good_draft_is_found() -> None:
    """The best of the candidates is told from those that are 10 % slower only in the long run."""
    found = runs(False)
    assert all(run.against_plain < 0.66 for run in found)
    assert mean(run.against_best for run in found) < 1.08


def test_text_that_turns_bad_costs_little() -> None:
    for run in runs(True, difficulty=good_then_bad):
        alone = simulate(True, 2000)  # the good half by itself
        bad_half = 2000 * 0.010
        assert run.seconds < 1.03 * (alone.seconds + bad_half)
        turn = int(len(run.trace) - 2000)  # about where the bad half begins: most of its steps give one token
        assert run.trace[turn + 60 :].count(PLAIN) > 0.9 * len(run.trace[turn + 60 :])


def test_text_that_turns_good_is_noticed() -> None:
    for run in runs(True, difficulty=bad_then_good):
        drafted = sum(run.steps.values()) - run.steps[PLAIN]
        assert drafted > 600  # of about 900 that the good half takes
        assert run.against_plain < 0.9


def swinging(at: float) -> float:
    return 0.5 if int(at / 60) % 2 else 1.8


def test_a_batch_whose_text_swings_does_not_speak_for_what_was_tried_meanwhile() -> None:
    """Taken one after the other, in a block, trials of 24 steps meet other text than the leader: 1.097 with seed 1."""
    for run in runs(True, rows=lambda _: 8, difficulty=swinging):
        assert run.against_best < 1.03


def test_in_a_batch_a_trial_and_the_leader_take_turns() -> None:
    run = simulate(True, 4000, rows=lambda _: 8)
    tried = run.steps["budget:4"] + run.steps["own"]
    changes = sum(one != other for one, other in zip(run.trace, run.trace[1:], strict=False))
    assert tried > 20 and changes >= 2 * tried


def test_choices_follow_the_batch() -> None:
    for course in (lambda at: 1 + at // 63, lambda at: 64 - at // 63):
        for run in runs(True, rows=course):
            assert run.against_plain < 1.0
            assert run.against_best < 1.01  # of one choice for all sizes
            assert min(run.steps[PLAIN], run.steps["chain:2"]) > 200


def test_slow_steps_of_other_processes_do_not_change_the_choice() -> None:
    quiet, busy = ([simulate(True, 4000, seed=seed, slow=slow) for seed in SEEDS] for slow in (0.0, 0.1))
    assert max(run.against_best for run in (*quiet, *busy)) < 1.03
    shares = [
        mean(run.steps["chain:2"] / sum(run.steps.values()) for run in found) for found in (quiet, busy)
    ]
    assert shares[0] > 0.8 and shares[1] > 0.97 * shares[0]


def test_one_very_slow_step_changes_nothing() -> None:
    policy, names = one_candidate(costs={1: {PLAIN: 1.0, "chain:2": 1.5}}, weight=200.0)
    chosen = [step(policy, names, 75.0 if i == 10 else 1.5, 3) for i in range(24)]
    assert chosen.count("chain:2") >= 21  # the rest is a trial of plain steps


def test_the_same_steps_give_the_same_choices() -> None:
    assert simulate(False, 1500, seed=3).trace == simulate(False, 1500, seed=3).trace


def step(policy: AutoPolicy, names: dict[int, str], seconds: float, emitted: int, rows: int = 1) -> str:
    """Let the policy choose, tell it that a drafted step gave `emitted` tokens per row, and say what it chose."""
    drafter = policy.choose(Running(rows, 100))
    gave = (1 if drafter is None else emitted,) * rows
    policy.record(StepOutcome(rows, 100, drafter, 1 if drafter is None else 3, gave, seconds, 0.0, 0))
    return PLAIN if drafter is None else names[id(drafter)]


def one_candidate(**arguments: Any) -> tuple[AutoPolicy, dict[int, str]]:
    drafter: Any = SimpleNamespace(max_nodes=3, max_depth=2)
    return AutoPolicy([Candidate("chain:2", drafter, 1.0)], **arguments), {id(drafter): "chain:2"}


def test_tuned_costs_decide_from_the_first_step() -> None:
    for cost, expected in ((1.5, "chain:2"), (2.5, PLAIN)):
        policy, names = one_candidate(costs={1: {PLAIN: 1.0, "chain:2": cost}}, weight=200.0)
        assert step(policy, names, cost, 2) == expected == policy.leader


def test_a_small_gain_per_step_is_not_taken_where_rows_would_end_one_by_one() -> None:
    costs = {1: {PLAIN: 13.0, "chain:2": 16.0}, 16: {PLAIN: 24.0, "chain:2": 46.0}}
    for left, expected in (((), "chain:2"), ((80,) * 16, PLAIN), ((80,) * 15 + (600,), PLAIN)):
        policy, _ = one_candidate(costs=costs, weight=200.0)
        policy.choose(Running(16, 100, left=left))
        assert policy.leader == expected
    gain = {1: {PLAIN: 13.0, "chain:2": 16.0}, 16: {PLAIN: 24.0, "chain:2": 36.0}}
    for known in (gain, {16: costs[16]}):  # a large gain; what a row alone takes is not known
        policy, _ = one_candidate(costs=known, weight=200.0)
        policy.choose(Running(16, 100, left=(80,) * 16))
        assert policy.leader == "chain:2"


def test_unknown_costs_are_measured_plain_steps_first() -> None:
    policy, names = one_candidate()
    chosen = [step(policy, names, 1.0, 3) for _ in range(12)]
    assert chosen[:5] == [PLAIN] * 5
    assert chosen[9:] == ["chain:2"] * 3


def test_what_the_draft_catches_up_on_is_no_part_of_its_cost() -> None:
    """Each drafted step that follows a plain one takes ten times as long; drafting is twice as fast all the same."""
    policy, names = one_candidate(costs={1: {PLAIN: 1.0, "chain:2": 1.5}}, weight=200.0)
    behind, chosen = 0, []
    for _ in range(300):
        drafter = policy.choose(Running(1, 100, behind=behind))
        caught_up, behind = (behind, 0) if drafter is not None else (0, behind + 1)
        seconds = 1.0 if drafter is None else 15.0 if caught_up else 1.5
        nodes, emitted = (1, (1,)) if drafter is None else (3, (3,))
        policy.record(StepOutcome(1, 100, drafter, nodes, emitted, seconds, 0.0, caught_up))
        chosen.append(names.get(id(drafter), PLAIN))
    assert chosen[-20:].count("chain:2") > 15
    assert chosen.count(PLAIN) < 15


def test_prompts_wait_for_a_draft_that_would_not_win_back_what_they_take() -> None:
    """Two tokens for 1.4 steps against one a step; to take in 100 positions of four rows takes four plain steps."""
    policy, names = one_candidate(costs={4: {PLAIN: 1.0, "chain:2": 1.4}}, weight=200.0)
    short, long = (Running(4, 100, left=(left,) * 4, behind=100) for left in (10, 100))
    assert policy.expects_draft(short), "nobody knows yet what it takes"
    for _ in range(8):
        step(policy, names, 1.4, 2, rows=4)
    for positions in (10, 1000, 1000):  # few positions say nothing
        policy.record_prefill(PrefillOutcome(positions, 10.0))
    for coming, expected in ((short, False), (long, True)):
        assert policy.expects_draft(coming) is expected
        assert (policy.choose(coming) is not None) is expected, "what is best does not change in between"
    assert policy.choose(Running(4, 100, left=(10,) * 4)) is not None


def test_a_trial_pays_for_what_the_draft_takes_in() -> None:
    """Its four steps lose two plain ones, which are earned in some 300; 400 positions of four rows take 3.2 more."""
    for behind, fewest, most in ((0, 150, 350), (400, 700, 1000)):
        policy, names = one_candidate(costs={4: {PLAIN: 1.0, "chain:2": 2.5}}, weight=200.0)
        for _ in range(2):
            policy.record_prefill(PrefillOutcome(1000, 2.0))
        chosen = []
        while "chain:2" not in chosen:
            drafter = policy.choose(Running(4, 500, behind=behind))
            chosen.append(names.get(id(drafter), PLAIN))
            policy.record(StepOutcome(4, 500, drafter, 1, (1,) * 4, 1.0, 0.0, 0))
        assert fewest < len(chosen) < most


def test_steps_at_the_end_of_the_context_teach_nothing() -> None:
    policy, names = one_candidate(costs={1: {PLAIN: 1.0, "chain:2": 1.5}}, weight=200.0)
    for _ in range(100):
        drafter = policy.choose(Running(1, 1000))
        policy.record(StepOutcome(1, 1000, drafter, 1, (1,), 1.0, 0.0, 0))
    assert step(policy, names, 1.5, 3) == "chain:2"


def test_limits_are_those_of_the_largest_tree() -> None:
    small, large = (SimpleNamespace(max_nodes=n, max_depth=d) for n, d in ((3, 2), (9, 5)))
    policy = AutoPolicy([Candidate("a", small, 1.0), Candidate("b", large, 1.0)])  # type: ignore[arg-type]
    assert (policy.max_nodes, policy.max_depth) == (32, 31), "those of the longest copies"
    policy = AutoPolicy([Candidate("a", small, 1.0), Candidate("b", large, 1.0)], copies=(7,))  # type: ignore[arg-type]
    assert (policy.max_nodes, policy.max_depth) == (9, 7)


# -- what is chosen between ------------------------------------------------------------------------------------------


def tuning(*choices: Choice) -> Tuning:
    return Tuning("cpu", "float32", "", 1, "", {}, "", (), choices)


def scripted_draft(depth: int = 5) -> Any:
    return ScriptedDraft(fake_target(30), random_opinion(30, ties=False), max_depth=depth)


def test_tuned_trees_are_chosen_between_per_batch_size() -> None:
    found = tuning(
        Choice(1, "chain:4", 3.0, 0.015, 200.0),
        Choice(1, "eagle2:6", 3.2, 0.017, 190.0),
        Choice(1, PLAIN, 1.0, 0.010, 100.0),
        Choice(8, PLAIN, 1.0, 0.016, 500.0),
        Choice(8, "chain:2", 2.2, 0.044, 400.0),
    )
    policy = make_policy(scripted_draft(), found, copies=False)
    assert (policy.max_nodes, policy.max_depth) == (7, 5)
    for rows, expected in ((1, "chain:4"), (8, PLAIN), (7, PLAIN), (64, PLAIN), (2, "chain:4")):
        policy.choose(Running(rows, 10))
        assert policy.leader == expected


def test_what_harder_text_may_want_is_always_considered() -> None:
    """A chain that ends early, half the depth, the shallowest, all chains, however slow on the text of the tuning."""
    static = ("chain:4", "chain:3", "chain:5", "eagle2:4:3:2", "chain:2", "eagle2:2:2:1", "chain:1")
    found = tuning(
        *(Choice(1, tree, 3.0, 0.015, 200.0 - place) for place, tree in enumerate(static)),
        Choice(1, "chain:5:0.1", 3.0, 0.020, 150.0),
        Choice(1, "chain:5:0.05", 3.0, 0.020, 149.0),
        Choice(1, PLAIN, 1.0, 0.010, 100.0),
    )
    policy = make_policy(scripted_draft(), found)
    others = ["chain:3", "chain:5", "chain:2", "chain:1"]
    assert list(policy._drafters) == ["chain:4", "chain:5:0.1", "eagle2:4:3:2", "eagle2:2:2:1", *others]
    assert policy._acceptance.stretch("chain:4", 7) == 1.0
    assert list(make_policy(scripted_draft(), found, True)._drafters) == [
        "chain:4",
        "eagle2:4:3:2",
        "eagle2:2:2:1",
    ]


def test_where_a_chain_that_ends_early_is_the_best_a_fixed_tree_is_considered_too() -> None:
    trees = ("chain:5:0.2", "chain:5:0.1", "chain:4", "chain:2", "chain:3")
    found = tuning(
        *(Choice(2, tree, 3.0, 0.015, 200.0 - place) for place, tree in enumerate(trees)),
        Choice(2, PLAIN, 1.0, 0.010, 100.0),
    )
    for compiled, expected in (
        (False, ["chain:5:0.2", "chain:4", "chain:2", "chain:3"]),
        (True, ["chain:4", "chain:2"]),
    ):
        assert list(make_policy(scripted_draft(), found, compiled)._drafters)[: len(expected)] == expected


def test_for_want_of_others_the_next_best_trees_are_considered() -> None:
    found = tuning(
        *(Choice(1, tree, 3.0, 0.015, 200.0) for tree in ("chain:4", "budget:4", "eagle2:4:3:5", "budget:5")),
        Choice(1, PLAIN, 1.0, 0.010, 100.0),
    )
    assert list(make_policy(scripted_draft(), found)._drafters) == ["chain:4", "budget:4", "eagle2:4:3:5"]
    early_only = tuning(Choice(1, "chain:5:0.1", 3.0, 0.020, 150.0), Choice(1, PLAIN, 1.0, 0.010, 100.0))
    draft = scripted_draft()
    draft.config.tree_shape = CLOVER2_TREE
    assert "chain:2" in make_policy(draft, early_only, True)._drafters


def test_compiled_steps_are_not_given_chains_of_many_lengths() -> None:
    found = tuning(
        Choice(1, "chain:5:0.1", 3.0, 0.015, 200.0),
        Choice(1, "chain:4", 3.0, 0.016, 190.0),
        Choice(1, PLAIN, 1.0, 0.010, 100.0),
    )
    for compiled, expected in ((False, "chain:5:0.1"), (True, "chain:4")):
        policy = make_policy(scripted_draft(), found, compiled)
        drafter = policy.choose(Running(1, 10))
        assert policy.leader == expected and isinstance(drafter, ConfidentDrafter) is not compiled
        draft = scripted_draft()
        draft.config.tree_shape = CLOVER2_TREE
        untuned = make_policy(draft, compiled=compiled)
        assert ("chain:2" in untuned._drafters) is compiled and len(untuned._drafters) == 3


def test_a_tuned_tree_that_is_too_deep_is_an_error() -> None:
    with pytest.raises(UserError, match="deep"):
        make_policy(scripted_draft(depth=2), tuning(Choice(1, "chain:4", 3.0, 0.015, 200.0)))
