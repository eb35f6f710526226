import pytest

from clover.drafting.estimates import RunningAcceptance, StepSeconds, even_rate, fit_line


def test_tokens_are_those_of_the_acceptance_rates() -> None:
    chains = RunningAcceptance(4, rate=0.5, weight=1.0)
    assert chains.tokens(2) == pytest.approx(1 + 0.5 + 0.25)
    for _ in range(300):
        chains.observe([3, 1], 4)  # rates 1, 1/2, 1, 0
    assert [chains.tokens(depth) for depth in (1, 2, 4)] == pytest.approx([2.0, 2.5, 3.0], abs=0.05)


def test_what_was_not_seen_for_long_is_not_expected_to_fail() -> None:
    tree = RunningAcceptance(3, rate=0.5, weight=1.0)
    for _ in range(50_000):  # plain steps, in which nothing is seen
        tree.discount()
    assert tree.tokens(2) == pytest.approx(1 + 0.5 + 0.25)


def test_costs_are_relative_to_the_speed_of_the_machine() -> None:
    costs = StepSeconds()
    for _ in range(300):
        costs.observe("plain", 1.0)
    for _ in range(100):
        costs.observe("plain", 2.0)  # another process takes half of the machine
    costs.observe("tree", 90.0)  # the first step compiles
    for _ in range(20):
        costs.observe("tree", 3.0)
    assert costs.seconds["tree"] / costs.seconds["plain"] == pytest.approx(1.5, rel=0.1)


def test_a_single_slow_step_changes_little() -> None:
    costs = StepSeconds({"plain": 1.0}, {"plain": 50})
    for seconds in (1.0, 1.0, 100.0):
        costs.observe("plain", seconds)
    assert costs.seconds["plain"] < 1.01 and costs.machine == pytest.approx(1.0, rel=0.05)


def test_lines_ignore_outliers_never_fall_and_start_at_nothing_or_above() -> None:
    points = [(0.0, 1.0), (2.0, 2.0), (4.0, 3.0)]
    assert fit_line(points) == pytest.approx((0.5, 1.0))
    assert fit_line([*points, (6.0, 4.0), (2.0, 90.0)]) == pytest.approx((0.5, 1.0))
    assert fit_line([(0.0, 3.0), (2.0, 1.0)]) == (0.0, 2.0)
    assert fit_line([(1.0, 3.0), (2.0, 9.0), (2.0, 9.0)]) == (4.5, 0.0)
    assert fit_line([(1.0, 3.0), (1.0, 5.0)]) == (0.0, 4.0)


def test_even_rates_give_the_tokens_they_are_made_from() -> None:
    rate = even_rate(2.5, 4)
    assert sum(rate**depth for depth in range(5)) == pytest.approx(2.5, rel=1e-6)
