"""Steps that are timed in turn: who runs, what is counted, and what is known of them afterwards."""

import pytest

from clover.drafting import PLAIN_DRAFTER, StaticDrafter
from clover.drafts.medusa import MedusaDraft
from clover.engine import Request
from clover.measure.steps import Step, StepCost, time_in_turn
from clover.target import TargetModel
from clover.tree import TreeShape
from tests.families import tiny_model


def test_everyone_gets_enough_turns() -> None:
    target = TargetModel(tiny_model("llama"))
    draft = MedusaDraft.from_target(target, num_heads=2).eval()
    batch, seen = [Request((3, 4, 5), 10), Request((6, 7), 10)], list[int]()
    drafters = {"plain": PLAIN_DRAFTER, "chain:2": StaticDrafter(draft, TreeShape.chain(2))}
    costs = time_in_turn(target, draft, drafters, [batch], lambda fewest: seen.append(fewest) or fewest >= 9)
    counts = [one.steps for one in costs.values()]
    assert min(counts) == max(seen) >= 9 and max(counts) - min(counts) <= 4
    assert [(one.tree, one.nodes, one.batch_size) for one in costs.values()] == [
        ("plain", 1, 2),
        ("chain:2", 3, 2),
    ]
    for one in costs.values():
        assert 0 < one.verify_seconds < one.seconds and one.error >= 0
    assert costs["plain"].at(1.0) == costs["plain"].seconds


def test_a_cost_is_of_medians_and_a_line() -> None:
    emitted = [(1, 1), (2, 2), (3, 3), (4, 4), (2, 2), (3, 3), (1, 1)]
    times = [0.01 + 0.002 * tokens for tokens, _ in emitted[:-1]] + [5.0]  # the last is an outlier
    steps = [Step(seconds, some, seconds / 2) for seconds, some in zip(times, emitted, strict=True)]
    cost = StepCost.of("chain:3", 4, steps)
    assert (cost.batch_size, cost.seconds, cost.verify_seconds) == (2, 0.016, 0.008)
    assert (cost.fixed, cost.per_token, cost.at(2.5)) == pytest.approx((0.01, 0.002, 0.015))
    assert cost.error == pytest.approx(1.4826 * 1.2533 * 0.002 / 7**0.5, rel=1e-3)
    on_a_gpu = StepCost.of("plain", 1, [Step(0.1, (1,), None), Step(0.3, (1,), 0.2)])
    assert (on_a_gpu.seconds, on_a_gpu.verify_seconds) == (0.2, 0.2)
