"""Steps that are timed in turn: who runs, what is counted, and what is known of them afterwards."""

import pytest

from clover.drafting import PLAIN_DRAFTER, StaticDrafter
from clover.drafts.medusa import MedusaDraft
from clover.engine import Request
from clover.measure.budget import Budget
from clover.measure.report.progress import Progress
from clover.measure.steps import Step, StepCost, share_time, time_in_turn
from clover.target import TargetModel
from clover.tree import TreeShape
from tests.families import tiny_model


def test_everyone_gets_enough_turns() -> None:
    target = TargetModel(tiny_model("llama"))
    draft = MedusaDraft.from_target(target, num_heads=2).eval()
    batch, seen = [Request((3, 4, 5), 10), Request((6, 7), 10)], list[int]()
    drafters = {"plain": PLAIN_DRAFTER, "chain:2": StaticDrafter(draft, TreeShape.chain(2))}
    costs = time_in_turn(
        target, draft, drafters, [batch], lambda fewest: seen.append(fewest) or fewest >= 9
    ).costs
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


def test_few_steps_give_no_slope() -> None:
    cost = StepCost.of("chain:3", 4, [Step(0.1 * n, (n,), 0.1) for n in (1, 2, 3)])
    assert (cost.fixed, cost.per_token) == (cost.seconds, 0.0) == (0.2, 0.0)


def test_the_time_is_kept_and_progress_moves_with_it() -> None:
    """Of three sizes whose fewest steps take 20, 40 and some 80 s, the last does not begin with 20 s left."""
    now, progress, shares = [0.0], Progress(), list[float]()
    budget, begun = Budget(1.5, lambda: now[0]), list[int]()
    progress.begin(3)
    for size, enough in share_time((1, 4, 16), budget, 80, 2, progress):
        begun.append(size)
        for count in (0, 0, 1, 2, 2, 2, 2):
            now[0] += 5.0 if size == 1 else 10.0
            shares.append(progress.done)
            if enough(count):
                break
    assert begun == [1, 4] and now[0] <= 90.0
    assert shares == sorted(shares) and len(set(shares)) == len(shares)  # it moved with every step


def test_without_time_the_first_drafter_and_one_more_are_timed() -> None:
    target = TargetModel(tiny_model("llama"))
    draft = MedusaDraft.from_target(target, num_heads=2).eval()
    drafters = {f"chain:{n}": StaticDrafter(draft, TreeShape.chain(n)) for n in (1, 2)}
    batch = [Request((3, 4, 5), 10)]
    for seed in range(4):
        costs = time_in_turn(
            target, draft, {"plain": PLAIN_DRAFTER, **drafters}, [batch], lambda _: True, seed
        ).costs
        assert len(costs) == 2 and "plain" in costs


def test_once_all_time_is_over_any_number_of_steps_is_enough() -> None:
    now, progress = [0.0], Progress()
    budget = Budget(1.0, lambda: now[0])
    progress.begin(1)
    ((_, enough),) = share_time((1,), budget, 80, 8, progress)
    now[0] = 59.0
    assert not enough(0) and not enough(7)
    now[0] = 60.0
    assert enough(0)
