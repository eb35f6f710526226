"""Running estimates: what they settle at, what they forget, and that single slow steps do not move them."""

from __future__ import annotations

import random
from math import exp, log
from statistics import fmean

import pytest

from clover.drafting.estimates import (
    AcceptanceEstimate,
    Believed,
    CatchUpEstimate,
    CostEstimate,
)
from clover.drafting.hazards import LEAST_HAZARD, accepted_of, hazard_of
from clover.drafting.tuning import TextDifficulty

KNOWN = {"small": Believed(1.25, 2), "large": Believed(3.0, 8)}


def path(rng: random.Random, chance: float, depth: int) -> int:
    accepted = 0
    while accepted < depth and rng.random() < chance:
        accepted += 1
    return accepted


def test_what_is_believed_holds_until_something_is_seen() -> None:
    estimate = AcceptanceEstimate(KNOWN, weight=10.0)
    found = [estimate.tokens(name) for name in ("small", "large", "none")]
    assert found == pytest.approx([2.25, 4.0, 1.0])


def test_texts_of_each_temperature_start_at_a_difficulty_of_their_own() -> None:
    estimate = AcceptanceEstimate(KNOWN, 10.0, (TextDifficulty(0.0, 1.0), TextDifficulty(1.0, 3.0)))
    hazard = hazard_of(3.0, 8)
    for temperature, difficulty in ((0.0, 1.0), (1.0, 3.0), (0.5, 2.0)):
        estimate.enter(temperature, range(4))
        assert estimate.tokens("large") == pytest.approx(1 + accepted_of(difficulty * hazard, 8), rel=1e-6)
    for _ in range(200):
        estimate.observe("large", [3] * 4, 0)
    assert estimate.tokens("large") == pytest.approx(4.0, rel=0.1), "what is seen outweighs what was presumed"
    estimate.enter(1.0, range(4))
    assert estimate.tokens("large") == pytest.approx(1 + accepted_of(3.0 * hazard, 8), rel=1e-6)


@pytest.mark.parametrize(("difficulty", "rows"), [(0.3, 16), (1.0, 1), (2.5, 1), (2.5, 16), (12.0, 4)])
def test_one_candidate_tells_how_deep_and_shallow_trees_do(difficulty: float, rows: int) -> None:
    """From the steps of either the tokens of both, without a bias: the mean of 3,000 steps is within 4 %."""
    chances = {
        name: exp(-difficulty * hazard_of(one.accepted, one.most_depth)) for name, one in KNOWN.items()
    }
    for running in KNOWN:
        estimate, rng, found = AcceptanceEstimate(KNOWN, weight=10.0), random.Random(0), []
        estimate.enter(0.0, range(rows))
        for _ in range(3000):
            estimate.observe(
                running, [path(rng, chances[running], KNOWN[running].most_depth) for _ in range(rows)], 0
            )
            found.append([estimate.tokens(name) for name in KNOWN])
        for name, mean in zip(KNOWN, map(fmean, zip(*found[50:])), strict=True):
            depth = KNOWN[name].most_depth
            assert mean == pytest.approx(1 + accepted_of(-log(chances[name]), depth), rel=0.04)


@pytest.mark.parametrize("running", KNOWN)
def test_where_hazards_vary_within_a_text_either_tree_still_tells_of_both(running: str) -> None:
    """Each step has a hazard of its own. With their true spread both candidates are right to 4 %, else one is not."""
    rng, mean, spread = random.Random(2), 0.4, 1.0
    lengths = [path(rng, exp(-rng.gammavariate(1 / spread, spread * mean)), 8) for _ in range(6000)]
    known = {
        name: Believed(accepted_of(0.2, one.most_depth, 0.5), one.most_depth) for name, one in KNOWN.items()
    }
    means: list[dict[str, float]] = []
    for own in (spread, 0.0):
        estimate = AcceptanceEstimate(
            known, 1e6, (TextDifficulty(0.0, 1.0, 0.5), TextDifficulty(1.0, 2.0, own))
        )
        estimate.enter(1.0, range(8))
        found: list[list[float]] = []
        for start in range(0, len(lengths), 8):
            depth = known[running].most_depth
            estimate.observe(running, [min(length, depth) for length in lengths[start : start + 8]], depth)
            found.append([estimate.tokens(name) for name in known])
        means.append(dict(zip(known, map(fmean, zip(*found[50:], strict=True)), strict=True)))
    true = {name: 1 + fmean(min(length, one.most_depth) for length in lengths) for name, one in known.items()}
    other = next(name for name in known if name != running)
    assert means[0] == pytest.approx(true, rel=0.04)
    assert abs(means[1][other] / true[other] - 1) > 0.05


def test_a_deep_tree_loses_more_on_hard_text_than_a_shallow_one() -> None:
    estimate = AcceptanceEstimate(KNOWN, weight=10.0)
    before = estimate.tokens("large") / estimate.tokens("small")
    for _ in range(50):
        estimate.observe("small", [0], 2)
    assert estimate.tokens("large") / estimate.tokens("small") < 0.7 * before


def test_a_chain_that_ends_early_is_shorter_on_hard_text() -> None:
    estimate = AcceptanceEstimate({"early": Believed(4.0, 12, 6.0), "fixed": Believed(4.0, 6)}, weight=10.0)
    assert estimate.stretch("early") == estimate.stretch("fixed") == estimate.stretch("none") == 1.0
    assert estimate.stretch("early", 3) == 0.5 and estimate.stretch("fixed", 3) == 1.0
    for _ in range(100):
        estimate.observe("fixed", [1], 6)
    difficulty = estimate._difficulty.ratio
    assert difficulty > 2
    assert estimate.stretch("early") == pytest.approx(max(difficulty**-0.3, 1 / 6))
    assert estimate.tokens("early") < estimate.tokens("fixed")
    for _ in range(100):
        estimate.observe("early", [12], 12)  # to its end: that is no refusal
    assert estimate.stretch("early") == 2.0


@pytest.mark.parametrize("learn", ["observe", "compare"])
def test_how_long_chains_that_end_early_really_are_is_learnt(learn: str) -> None:
    """The difficulty says that they are shorter than six tokens, by a rule that does not hold here."""
    estimate = AcceptanceEstimate({"early": Believed(4.0, 12, 6.0), "fixed": Believed(4.0, 6)}, weight=10.0)
    for depth in (8, 3):
        for _ in range(150):
            estimate.observe("fixed", [1], 6)
            getattr(estimate, learn)("early", [1], depth)
        assert estimate.stretch("early") == pytest.approx(depth / 6, rel=0.1)
    assert estimate.stretch("fixed") == 1.0


def test_thousands_of_steps_without_an_end_and_then_one() -> None:
    estimate = AcceptanceEstimate({**KNOWN, "early": Believed(3.0, 12, 6.0)}, weight=10.0)
    estimate.enter(0.0, range(16))
    for name, learn in (("small", estimate.observe), ("large", estimate.compare)):
        for _ in range(5000):
            learn(name, [KNOWN[name].most_depth] * 16, 0)
    assert estimate._difficulty.ratio == LEAST_HAZARD
    found = [estimate.tokens(name) for name in ("small", "large", "early")]
    assert found == pytest.approx([3.0, 9.0, 13.0], rel=0.01) and estimate.stretch("early") == 2.0
    for _ in range(20):
        estimate.observe("small", [0] * 16, 0)
    assert estimate.tokens("small") < 1.2


def test_texts_of_other_temperatures_are_others() -> None:
    estimate = AcceptanceEstimate(KNOWN, weight=10.0)
    for _ in range(50):
        estimate.observe("large", [0], 8)
    hard = estimate.tokens("large")
    for same in (0.1, 0.2):
        estimate.enter(same, (0,))
        assert estimate.tokens("large") == hard
    estimate.enter(0.8, (0,))
    assert estimate.tokens("large") == pytest.approx(4.0)
    estimate.enter(1e9, (0,))
    for _ in range(50):
        estimate.observe("large", [8], 8)
    estimate.enter(2.0, (0,))
    assert estimate.tokens("large") > 8.0
    estimate.enter(0.0, (0,))
    assert estimate.tokens("large") == hard


def test_trials_tell_what_a_candidate_is_worth_and_weigh_what_was_believed() -> None:
    """Its hazard is the paths that ended over the tokens of all of them, those of the belief included."""
    estimate, rng = AcceptanceEstimate({**KNOWN, "b": Believed(1.5, 3)}, weight=100.0), random.Random(1)
    before, small = estimate.tokens("b"), estimate.tokens("small")
    for _ in range(100):
        estimate.compare("b", [path(rng, 0.3, 3)], 3)
    between = estimate.tokens("b")
    assert 1 + 0.3 + 0.09 + 0.027 < between < before
    for _ in range(3000):
        estimate.compare("b", [path(rng, 0.3, 3)], 3)
    assert estimate.tokens("b") == pytest.approx(1 + 0.3 + 0.09 + 0.027, rel=0.05)
    assert estimate.tokens("small") == small


def test_costs_follow_the_machine_together() -> None:
    estimate = CostEstimate({"none": 1.0, "tree": 1.5}, weight=4)
    assert not estimate.paced
    for _ in range(9):
        estimate.observe("none", 3.0)
    assert estimate.paced
    assert (estimate.pace, estimate.step("tree", 1.0)) == (3.0, 1.5)
    assert estimate.relative == {"none": 1.0, "tree": 1.5}
    estimate.interrupt()
    assert not estimate.paced


def test_trials_are_measured_by_the_speed_that_others_give() -> None:
    estimate = CostEstimate({}, weight=2)
    for _ in range(5):
        estimate.observe("none", 2.0)
    estimate.compare("tree", [(5.0, 1.0), (90.0, 1.0), (5.0, 1.0)])
    assert estimate.relative == {"none": 2.0, "tree": 5.0}
    for _ in range(9):
        estimate.observe("none", 4.0)  # the machine is half as fast now
    estimate.compare("tree", [(10.0, 1.0), (10.0, 1.0)])
    assert estimate.relative["tree"] == 5.0


def test_four_slow_steps_move_no_median() -> None:
    estimate = CostEstimate({"none": 1.0}, weight=4)
    for seconds in (1.0, 1.0, 1.0, 1.0, 1.0, 50.0, 50.0, 50.0, 50.0):
        estimate.observe("none", seconds)
    assert estimate.pace == 1.0


def test_what_a_step_takes_beyond_a_plain_one_goes_with_its_depth() -> None:
    estimate = CostEstimate({"none": 1.0, "early": 3.0}, weight=4)
    found = [estimate.step("early", stretch) for stretch in (0.5, 1.0, 2.0)]
    assert found == pytest.approx([1 + 0.2 + 0.9, 3.0, 1 + 0.2 + 3.6])  # a tenth of 2 whatever the depth
    assert estimate.steps(lambda name: 0.5)["early"] == pytest.approx(2.1)
    for _ in range(5):
        estimate.observe("early", 21.0, 0.5)
    assert estimate.pace == pytest.approx(10.0)
    estimate.compare(
        "early", [(48.0, 2.0)] * 9
    )  # beyond the plain step's 10: 38, of which 20 at the usual depth
    assert estimate.relative["early"] == pytest.approx(3.0)


def test_what_catching_up_takes_is_the_lower_median_of_late() -> None:
    estimate = CatchUpEstimate()
    assert estimate.seconds == 0.0
    estimate.observe(10, 1000.0)  # too few to say anything
    estimate.observe(100, 2.0)
    assert estimate.seconds == 0.0, "another process may have slowed the first one"
    for seconds in (1.0, 50.0, 60.0):
        estimate.observe(100, seconds)
    assert estimate.seconds == 0.02
    for _ in range(3):
        estimate.observe(200, 800.0)
    assert estimate.seconds == 4.0
