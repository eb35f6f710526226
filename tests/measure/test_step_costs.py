"""Steps of a draft that is forced to be right, and what τ their costs ask for."""

from statistics import fmean

import pytest

from clover.drafting import FixedPolicy, StaticDrafter, StaticTree, parse_tree
from clover.drafts.medusa import MedusaDraft
from clover.engine import Engine, PhaseClock, Request
from clover.measure.step_costs import ForcedDrafter, TextCost, TreeCost, measure_steps
from clover.measure.steps import StepCost
from clover.measure.timing import time_decoding
from clover.target import TargetModel
from clover.tree import TreeShape
from tests.families import tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module")
def draft(target: TargetModel) -> MedusaDraft:
    return MedusaDraft.from_target(target, num_heads=3).eval()


BATCH = [Request((3, 4, 5), 40, eos=()), Request((6, 7), 40, eos=())]


@pytest.mark.parametrize(
    "name", ["chain:3", "paths:0,1,00,01,10,000", "paths:0,1,10,100"]
)  # the last has no deep first choices
def test_a_forced_draft_is_right_now_and_then_and_the_text_stays(
    target: TargetModel, draft: MedusaDraft, name: str
) -> None:
    plain = time_decoding(Engine(target), BATCH)
    tree = parse_tree(name)
    assert isinstance(tree, StaticTree)
    texts = [[*one.prompt, *new] for one, new in zip(BATCH, plain.texts, strict=True)]
    forced = ForcedDrafter(StaticDrafter(draft, tree.shape), texts)
    run = time_decoding(Engine(target, draft, policy=FixedPolicy(forced)), BATCH)
    assert run.texts == plain.texts
    untrained = time_decoding(Engine(target, draft, tree), BATCH)
    assert run.acceptance.tau > untrained.acceptance.tau + 0.3
    assert len(run.acceptance.histogram) == 4 and all(run.acceptance.histogram)  # none to three are accepted


def test_steps_of_all_trees_are_measured(target: TargetModel, draft: MedusaDraft) -> None:
    shapes = [TreeShape.chain(1), TreeShape.chain(3)]
    costs = measure_steps(target, draft, shapes, BATCH, lambda steps: steps >= 12)
    found = [(one.drafted.step.tree, one.depth, one.drafted.step.nodes) for one in costs]
    assert found == [("chain:1", 1, 2), ("chain:3", 3, 4)]
    for one in costs:
        plain, own = one.plain, one.drafted
        assert plain == costs[0].plain and plain.step.batch_size == 2 and plain.new_tokens == 40
        assert plain.step.seconds > 0 and plain.prefill > 0 and own.prefill > 0 and own.step.steps >= 12


def test_the_clock_of_a_prefill_waits_for_the_gpu(
    target: TargetModel, draft: MedusaDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the prefill is what it takes to launch it."""
    clocks: list[bool] = []

    def made(synchronize: bool = False) -> PhaseClock:
        clocks.append(synchronize)
        return PhaseClock(synchronize)

    monkeypatch.setattr("clover.measure.step_costs.PhaseClock", made)
    measure_steps(target, draft, [TreeShape.chain(1)], BATCH, lambda steps: steps >= 2)
    assert clocks == [True]


def cost(prefill: float, size: int = 1) -> TreeCost:
    """Plain steps of 10 ms, and of a chain 12 ms and 1 ms per token; texts of 100 tokens."""
    plain = TextCost(100, 0.5, StepCost(size, "plain", 1, 0.01, fixed=0.01))
    return TreeCost(
        plain, TextCost(100, prefill, StepCost(size, "chain:4", 5, 0.02, fixed=0.012, per_token=0.001)), 4
    )


def test_speedup_is_time_divided_by_time() -> None:
    steps = [3, 2, 5]  # tokens of each
    seconds = 0.6 + 100 / sum(steps) * sum(0.012 + 0.001 * tokens for tokens in steps)
    assert cost(0.6).speedup(fmean(steps)) == pytest.approx(1.5 / seconds)
    assert cost(0.6, 4).plain_token_seconds == pytest.approx(1.5 / 400)


@pytest.mark.parametrize("speedup", [0.9, 1.0, 1.5])
def test_the_tau_of_a_speedup_gives_it(speedup: float) -> None:
    tau = cost(0.5).tau(speedup)
    assert tau is not None and cost(0.5).speedup(tau) == pytest.approx(speedup)


def test_what_a_tree_cannot_give_is_none() -> None:
    assert cost(0.5).tau(2.5) is None  # would take more than 5 tokens per step
    assert cost(0.5).tau(50.0) is None  # the prompts alone take longer
