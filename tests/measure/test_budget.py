"""Time that is kept, by a clock that the test sets, and a busy machine."""

from __future__ import annotations

import pytest

from clover.measure.budget import Budget, OtherPrograms


def test_what_would_not_end_in_time_is_not_begun() -> None:
    now = [0.0]
    budget, done = Budget(1.0, lambda: now[0]), []
    for seconds in budget.each([20.0, 10.0, 15.0, 1.0, 1.0]):
        now[0] += seconds
        done.append(seconds)
    assert done == [20.0, 10.0, 15.0]  # 15 s are left, and one lasted 20 s
    assert (budget.done, budget.left, budget.share, budget.why) == (3, 15.0, 0.75, "--max-minutes 1")


def test_an_interrupt_ends_the_work_once_there_is_something_to_show() -> None:
    budget = Budget(1.0)
    with pytest.raises(KeyboardInterrupt), budget.until_interrupted():
        raise KeyboardInterrupt
    with budget.until_interrupted():
        for number in budget.each(range(5)):
            if number == 2:
                raise KeyboardInterrupt
    assert (budget.done, budget.interrupted, budget.why) == (2, True, "Ctrl-C")


def test_other_programs_are_counted_and_this_one_is_not() -> None:
    times = iter([(5.0, 100.0, 7.0), (15.0, 118.0, 9.0)])
    assert OtherPrograms(lambda: next(times)).used == 1.6
    assert OtherPrograms(lambda: None).words is None
    used = OtherPrograms().used  # of this machine
    assert used is None or used >= 0.0
