"""What the tables of costs say."""

from __future__ import annotations

from clover.measure.cost.breakeven import TrainingCost
from clover.measure.cost.report import as_data, break_even_table
from clover.measure.cost.steps import PlainCost, TreeCost

FAST = TreeCost(PlainCost(1, 100, 0.1, 0.01), "chain:2", 2, 2, 0.1, 0.011, 0.0, 9)  # a step is little dearer


def test_a_tau_that_the_tree_cannot_give_is_not_one_that_never_pays() -> None:
    taus, training = (1.0, 3.0, 3.5), TrainingCost(3600.0)
    ((batch, _, never, paid, beyond),) = break_even_table([FAST], training, taus).rows
    assert (batch, never, beyond) == ("1", "never", "–") and paid not in ("never", "–")
    found = as_data(FAST, training, taus)
    assert found["paying_tokens_at"]["1"] is None and found["paying_tokens_at"]["3"] > 0
    assert set(found["paying_tokens_at"]) == set(found["speedup_at"]) == {"1", "3"}
