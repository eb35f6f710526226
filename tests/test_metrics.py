import json
import random

import pytest

from clover.metrics import Acceptance


def recorded(steps: list[tuple[int, int]]) -> Acceptance:
    acceptance = Acceptance()
    for count, drafted_depth in steps:
        acceptance.record(count, drafted_depth)
    return acceptance


def random_steps(rng: random.Random) -> list[tuple[int, int]]:
    depths = [rng.randint(0, 5) for _ in range(rng.randint(0, 30))]
    return [(rng.randint(1, depth + 1), depth) for depth in depths]


def test_figures_equal_counting_by_hand():
    rng = random.Random(0)
    for _ in range(50):
        steps = random_steps(rng)
        acceptance = recorded(steps)
        assert acceptance.steps == len(steps)
        assert acceptance.emitted == sum(count for count, _ in steps)
        assert acceptance.drafted == sum(depth for _, depth in steps)
        assert acceptance.tau == (acceptance.emitted / len(steps) if steps else 0)
        for depth, rate in enumerate(acceptance.acceptance_per_depth, start=1):
            tried = [count > depth for count, drafted in steps if count >= depth and drafted >= depth]
            assert rate == sum(tried) / len(tried)


def test_a_step_in_which_the_text_ends_says_nothing_of_the_depth_of_its_end():
    acceptance = Acceptance()
    for count, cut in ((4, False), (2, True), (1, True)):  # a chain of three that is always right
        acceptance.record(count, 3, cut)
    assert acceptance.acceptance_per_depth == [1.0, 1.0, 1.0] and acceptance.tau == 7 / 3


def test_merging_equals_recording_together():
    rng = random.Random(1)
    for _ in range(50):
        left, right = random_steps(rng), random_steps(rng)
        assert recorded(left) + recorded(right) == recorded(left + right)
        assert sum([recorded(left), recorded(right)], Acceptance()) == recorded(left + right)


def test_merging_leaves_its_parts_alone():
    left, right = recorded([(1, 2)]), recorded([(3, 2)])
    total = left + right
    total.record(2, 2)
    assert (left, right) == (recorded([(1, 2)]), recorded([(3, 2)]))


def test_plain_decoding_has_tau_one():
    acceptance = recorded([(1, 0)] * 4)
    assert acceptance.tau == 1
    assert acceptance.acceptance_per_depth == []


def test_to_dict_is_json():
    found = json.loads(json.dumps(recorded([(3, 3), (1, 3)]).to_dict()))
    assert (found["tau"], found["drafted"], found["histogram"]) == (2, 6, [1, 0, 1])
    assert Acceptance().to_dict()["tau"] == 0


@pytest.mark.parametrize(("count", "drafted_depth"), [(0, 3), (3, 1)])
def test_impossible_steps_are_refused(count, drafted_depth):
    with pytest.raises(AssertionError):
        Acceptance().record(count, drafted_depth)
