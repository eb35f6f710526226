"""Time that is kept, by a clock that the test sets, and a busy machine."""

from __future__ import annotations

import pytest

from clover.measure.budget import Budget, OtherPrograms
from clover.measure.report.progress import Progress


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


def test_a_second_loop_has_no_thing_in_any_case() -> None:
    now = [0.0]
    budget = Budget(1.0, lambda: now[0])
    for _ in budget.each("a"):
        now[0] += 61.0
    assert list(budget.each("bc")) == []


def test_time_that_could_not_be_kept_is_told() -> None:
    now = [0.0]
    budget = Budget(1.0, lambda: now[0])
    half = budget.part(0.5)
    now[0] = 29.0
    assert not half()
    now[0] = 50.0
    budget.start(Progress())
    assert half() and not budget.part(0.5)() and "late" not in dict(budget.facts)
    now[0] = 70.0
    assert budget.part(0.5)()
    assert dict(budget.facts)["late"].startswith("it took 1:10 min, more than --max-minutes 1: loading 50 s")
