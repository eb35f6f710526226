"""When what does not lead may be tried."""

from __future__ import annotations

from clover.drafting.estimates import CostEstimate
from clover.drafting.sizes import Size
from clover.drafting.tuning import PLAIN


def size(tuned: bool) -> Size:
    return Size(CostEstimate({}, 1), (PLAIN, "a", "b"), tuned)


def steps_until(one: Size, name: str, most: int = 2000) -> int:
    start = one.steps
    while not one.is_due(name):
        one.steps += 1
        assert one.steps < start + most
    return one.steps - start


def test_without_a_tuning_all_are_tried_at_once_and_losers_wait_twice_as_long_each_time() -> None:
    one = size(tuned=False)
    one.lead("a")
    assert one.is_due("b")
    waits: list[int] = []
    for won in (False, False, False, False, True, False):
        one.end_trial("b", won)
        waits.append(steps_until(one, "b"))
    assert waits == [48, 96, 192, 192, 24, 48]


def test_where_costs_are_tuned_trials_are_four_times_as_rare_while_something_drafts() -> None:
    one = size(tuned=True)
    one.lead("a")
    assert steps_until(one, "b") == 96
    one.end_trial("b", won=False)
    assert steps_until(one, "b") == 192


def test_plain_steps_learn_nothing_so_what_drafts_is_tried_as_soon_as_without_a_tuning() -> None:
    one = size(tuned=True)
    assert steps_until(one, "a") == 24
    one.lead("a")
    one.end_trial("b", won=False)
    one.lead(PLAIN)
    assert steps_until(one, "a") == 24 and steps_until(one, "b") == 48 - 24


def test_plain_steps_are_tried_first_and_counted() -> None:
    one = size(tuned=True)
    assert one.is_due(PLAIN) and not one.plain_tried
    one.lead("a")
    one.end_trial(PLAIN, won=False)
    assert one.plain_tried and steps_until(one, PLAIN) == 192


def test_what_led_waits_as_if_it_had_never_lost() -> None:
    one = size(tuned=False)
    one.lead("a")
    for _ in range(3):
        one.end_trial("b", won=False)
    one.lead("b")
    assert steps_until(one, "a") == 24
    one.lead("a")
    assert steps_until(one, "b") == 24
