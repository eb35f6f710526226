"""Costs: the model recovers made-up ones exactly; measuring sees every tree."""

from random import Random

import pytest

from clover.drafting import FixedPolicy, make_drafter
from clover.drafting.tuning import PLAIN
from clover.drafts import RecallDraft
from clover.engine import Engine, PhaseClock, Request
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE, TreeShape, parse_tree, static_spec
from clover.tune.costs import CostModel, StepCosts, TreeCost, least_squares, measure_costs, probe_trees
from clover.tune.watch import Turns, watch
from tests.families import tiny_model

OTHER = 0.001


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module")
def draft(target: TargetModel) -> RecallDraft:
    return RecallDraft.from_target(target, num_heads=3).eval()


def draft_seconds(shape: TreeShape) -> float:
    below = shape.levels[1:]
    return 0.002 + 0.0007 * len(below) + 0.0001 * sum(len(level.expanded) for level in below)


def verify_pass(nodes: int) -> float:
    return 0.01 + 0.0002 * nodes + (0.004 if nodes > 16 else 0.0)


def made_up_costs(trees: list[str]) -> StepCosts:
    found = [TreeCost(PLAIN, 1, 96, 9, 0.0, verify_pass(1), OTHER)]
    for tree in trees:
        shape = parse_tree(tree)
        assert isinstance(shape, TreeShape)
        nodes = len(shape.parents)
        found.append(TreeCost(tree, nodes, 96, 9, draft_seconds(shape), verify_pass(nodes), OTHER))
    return StepCosts(2, tuple(found))


def test_made_up_costs_are_foretold_exactly() -> None:
    probes = probe_trees(lambda size: None, max_depth=4, vocab_size=100)
    model = CostModel(made_up_costs(probes))
    measured = {len(parse_tree(probe).parents) for probe in probes}  # type: ignore[union-attr]
    assert {2, 9, 17, 26, 65} <= measured
    for shape in (CLOVER2_TREE.cut(4), TreeShape.chain(4), TreeShape.from_paths([[i] for i in range(25)])):
        assert model.draft(shape) == pytest.approx(draft_seconds(shape), rel=1e-9)
        if len(shape.parents) in measured:
            expected = draft_seconds(shape) + verify_pass(len(shape.parents)) + OTHER
            assert model.step(shape) == pytest.approx(expected, rel=1e-9)
    assert model.plain_step() == verify_pass(1) + OTHER


def test_costs_survive_being_kept() -> None:
    costs = made_up_costs(["chain:2", "paths:0,1"])
    assert StepCosts.from_json(costs.to_json()) == costs


def test_costs_of_one_size_are_the_median_of_its_trees() -> None:
    trees = [
        TreeCost(f"chain:{i}", 3, 96, 9, 0.1 * i, seconds, 0.0)
        for i, seconds in ((1, 5.0), (2, 1.0), (3, 2.0))
    ]
    costs = StepCosts(4, (*trees, TreeCost("chain:1", 3, 200, 9, 0.3, 9.0, 0.0)))
    assert [(one.nodes, one.context, one.seconds) for one in costs.verify] == [(3, 96, 2.0), (3, 200, 9.0)]
    assert {one.tree: one.seconds for one in costs.draft} == pytest.approx(
        {"chain:1": 0.2, "chain:2": 0.2, "chain:3": 0.3}
    )


def squared_error(weights: list[float], features: list[list[float]], values: list[float]) -> float:
    return sum(
        (sum(w * x for w, x in zip(weights, row)) - value) ** 2 for row, value in zip(features, values)
    )


def test_no_choice_of_weights_fits_better() -> None:
    rng = Random(0)
    for _ in range(20):
        features = [[1.0, rng.uniform(0, 5), rng.uniform(0, 9)] for _ in range(6)]
        values = [rng.uniform(0, 3) for _ in range(6)]
        found = least_squares(features, values)
        assert min(found) >= 0
        for _ in range(200):
            other = [max(weight + rng.gauss(0, 0.05), 0.0) for weight in found]
            least = squared_error(found, features, values)
            assert least <= squared_error(other, features, values) + 1e-12


def test_probes_are_the_drafts_own_best_trees_where_known() -> None:
    best = {4: TreeShape.from_paths([[0], [0, 0], [0, 1], [3]]), 8: CLOVER2_TREE.cut(2)}
    probes = probe_trees(best.get, max_depth=2, vocab_size=50, sizes=(5, 9, 65))
    assert static_spec(best[4]) in probes and static_spec(best[8]) in probes
    assert {"chain:1", "chain:2"} <= set(probes) and len(probes) == len(set(probes))
    shapes = [parse_tree(probe) for probe in probes]
    assert all(isinstance(shape, TreeShape) and shape.max_depth <= 2 for shape in shapes)
    small = probe_trees(lambda size: None, max_depth=1, vocab_size=4, sizes=(2, 5, 9))
    assert small == ["chain:1", "paths:0,1,2,3"]  # four tokens make no tree of eight


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_every_tree_is_measured_often_enough(target: TargetModel, draft: RecallDraft) -> None:
    trees = ["chain:1", "chain:3", "paths:0,1,2,00"]
    rows = [(3, 4, 5, 6), (7, 8, 9, 10)]
    found = measure_costs(target, draft, trees, rows, repeats=4, enough=lambda: False)
    assert [(one.tree, one.nodes) for one in found] == [
        (PLAIN, 1),
        ("chain:1", 2),
        ("chain:3", 4),
        (trees[2], 5),
    ]
    assert all(one.steps >= 4 and one.verify > 0 and one.other > 0 for one in found)
    assert all((one.draft > 0) == (one.tree != PLAIN) or one.draft < 1e-4 for one in found)
    assert len({one.context for one in found}) == 1 and found[0].context > 4
    short = measure_costs(target, draft, trees, rows, repeats=10**6, enough=lambda: True)
    assert all(one.steps >= 1 for one in short)


def test_trees_that_take_turns_write_the_same_text(target: TargetModel, draft: RecallDraft) -> None:
    drafters = [None, make_drafter(draft, TreeShape.chain(2)), make_drafter(draft, CLOVER2_TREE.cut(3))]
    request = Request((3, 4, 5), 40, eos=())
    clock = PhaseClock()
    turns = Turns(drafters, clock)
    *_, last = Engine(target, draft, policy=turns).run([request], clock)
    *_, plain = Engine(target).run([request])
    assert last.generation is not None and plain.generation is not None
    assert last.generation.tokens == plain.generation.tokens
    counts = [len(steps) for steps in turns.steps]
    assert sum(counts) == clock.steps and max(counts) - min(counts) <= 1
    assert [{step.outcome.nodes for step in steps} for steps in turns.steps] == [
        {1},
        {3},
        {CLOVER2_TREE.cut(3).budget + 1},
    ]
    verified = sum(step.verify_seconds for steps in turns.steps for step in steps)
    assert verified == pytest.approx(clock.seconds["verify"])
    assert all(step.other_seconds > 0 for steps in turns.steps for step in steps)


def test_only_steps_of_a_full_batch_count(target: TargetModel, draft: RecallDraft) -> None:
    requests = [Request((3, 4), 3, eos=()), Request((5, 6), 30, eos=())]
    (steps,) = watch(target, draft, [make_drafter(draft, TreeShape.chain(1))], requests)
    assert 1 <= len(steps) <= 3 and {step.outcome.batch_size for step in steps} == {2}
    (plain,) = watch(target, None, [None], requests)
    assert len(plain) == 3 and all(step.outcome.emitted == (1, 1) for step in plain)
    assert FixedPolicy(None).max_nodes == Turns([None], PhaseClock()).max_nodes
