import pytest

from clover.tree import CLOVER2_TREE, TreeShape, parse_tree
from clover.tune.costs import CostModel
from clover.tune.search import Prediction, break_even, predict, rules_worth_trying, worth_trying
from clover.tune.shapes import Candidate
from tests.tune.test_costs import OTHER, draft_seconds, made_up_costs, verify_pass

PROBES = ["chain:1", "chain:4", "clover2", "paths:0,1,00", "paths:0,1,2,00,01"]


def test_the_fastest_is_first_and_its_speed_is_tokens_over_seconds() -> None:
    model = CostModel(made_up_costs(PROBES))
    small, large = Candidate(TreeShape.chain(1), 1.8), Candidate(CLOVER2_TREE, 4.0)
    weak = Candidate(TreeShape.chain(4), 1.1)
    found = predict(model, [weak, small, large])
    assert [one.candidate for one in found] == [large, small, weak]
    seconds = draft_seconds(CLOVER2_TREE) + verify_pass(26) + OTHER
    assert found[0].step_seconds == pytest.approx(seconds)
    assert found[0].tokens_per_second == pytest.approx(4.0 * 2 / seconds)
    assert found[0].speedup == pytest.approx(4.0 * (verify_pass(1) + OTHER) / seconds)


def test_neighbours_are_tried_once() -> None:
    shapes = [TreeShape.from_paths([[i] for i in range(size)]) for size in (10, 9, 5, 4, 2, 1)]
    predictions = [Prediction(Candidate(shape, 2.0), 1.0, 10.0 - i, 1.0) for i, shape in enumerate(shapes)]
    tried = worth_trying(predictions)
    assert [one.candidate.shape.budget for one in tried] == [10, 5, 2]


def test_rules_are_about_as_large() -> None:
    best = TreeShape.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1]])
    ends = ["chain:6:0.1", "chain:6:0.05"]
    assert rules_worth_trying(best, 1, 6, 0.1) == ["budget:8", "eagle2:8:3:3", "eagle2:4:3:3", *ends]
    one = TreeShape.chain(1)
    assert rules_worth_trying(one, 4, 1, 0.1) == ["budget:1", "eagle2:1:3:1"]
    for rule in rules_worth_trying(best, 4, 6, 1 / 3):
        parse_tree(rule)


def test_a_further_token_has_to_bring_what_its_time_would_yield_elsewhere() -> None:
    model = CostModel(made_up_costs(PROBES))
    further = (
        draft_seconds(TreeShape.chain(5))
        + verify_pass(6)
        - draft_seconds(TreeShape.chain(1))
        - verify_pass(2)
    ) / 4
    speed = 0.4 / further * model.costs.batch_size
    assert break_even(model, 5, speed) == pytest.approx(0.4)
    assert (
        break_even(model, 5, 1e9) == 0.9 and break_even(model, 1, speed) == break_even(model, 5, 0.0) == 0.01
    )
