import pytest

from clover.drafting import StepOutcome
from clover.drafting.tuning import PLAIN, Choice
from clover.drafts import Clover2Draft
from clover.target import TargetModel
from clover.tune import trials
from clover.tune.texts import Text
from clover.tune.trials import Trial, make_batches, try_trees
from clover.tune.watch import Step
from tests.families import tiny_model


def text(prompt: int, length: int) -> Text:
    return Text((3, prompt), (0,) * length)


def test_rows_of_a_batch_are_about_equally_long() -> None:
    texts = [text(number, length) for number, length in enumerate((5, 50, 7, 40, 30))]
    batches = make_batches(texts, 2, most=8)
    assert [[r.max_new_tokens for r in batch] for batch in batches] == [[50, 40], [30, 7]]
    assert [r.prompt for r in batches[0]] == [(3, 1), (3, 3)]
    assert len(make_batches(texts, 1, most=3)) == 3
    assert [r.prompt[1] for r in make_batches(texts[:2], 5, most=1)[0]] == [1, 0, 1, 0, 1]


class Script:
    """Stands in for decoding: tokens and seconds per step that each tree is said to take."""

    def __init__(self, seconds: dict[str, list[float]]):
        self.seconds = {tree: list(values) for tree, values in seconds.items()}
        self.runs: list[str] = []

    def watch(self, tree: str, rows: int) -> list[Step]:
        self.runs.append(tree)
        seconds = self.seconds[tree].pop(0) if self.seconds[tree] else 99.0
        emitted = (1 if tree == PLAIN else 3,) * rows
        outcome = StepOutcome(rows, 9, None, 1 if tree == PLAIN else 5, emitted, seconds, seconds / 4, 0)
        return [Step(outcome, seconds / 2)] * 2


@pytest.fixture
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def scripted(monkeypatch: pytest.MonkeyPatch, target: TargetModel, script: Script, **options) -> list[Trial]:
    monkeypatch.setattr(trials._Runner, "warm_up", lambda runner, batch: None)
    monkeypatch.setattr(
        trials._Runner, "_watch", lambda self, batch, seed: script.watch(self.tree, len(batch))
    )
    draft = Clover2Draft.from_target(target, num_heads=3)
    options = {"rounds": 3, "enough": lambda: False} | options
    batches = make_batches([text(1, 5), text(2, 5)], 2, most=1)
    return try_trees(target, draft, list(script.seconds), batches, None, **options)


def test_medians_of_the_rounds_decide(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script({PLAIN: [1.0, 5.0, 1.1], "chain:2": [2.0, 2.2, 9.0], "chain:3": [2.1, 2.1, 2.1]})
    found = scripted(monkeypatch, target, script)
    assert [trial.tree for trial in found] == ["chain:3", "chain:2", PLAIN]
    first = found[0]
    assert first.choice() == Choice(2, "chain:3", pytest.approx(12 / 4.2), 3.0, pytest.approx(2.1), 5.0)
    assert (first.rounds, first.steps, first.nodes) == (3, 2, 5)
    assert (first.draft_seconds, first.verify_seconds) == pytest.approx((4.2 / 4, 4.2 / 2))
    assert found[2].seconds == pytest.approx(2.2) and found[2].tau == 1.0
    assert Trial(**first.to_json()) == first


def test_the_hopeless_run_once_but_plain_decoding_always(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script({PLAIN: [9.0] * 3, "chain:1": [1.0] * 3, "chain:2": [1.1] * 3, "chain:3": [2.0] * 3})
    found = scripted(monkeypatch, target, script)
    assert {trial.tree: trial.rounds for trial in found} == {
        PLAIN: 3,
        "chain:1": 3,
        "chain:2": 3,
        "chain:3": 1,
    }
    assert len(script.runs) == 10


def test_time_that_is_over_ends_a_trial_after_a_whole_turn(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, shares = Script({PLAIN: [1.0], "chain:1": [1.0]}), list[float]()
    found = scripted(monkeypatch, target, script, enough=lambda: True, progress=shares.append)
    assert sorted(script.runs) == ["chain:1", PLAIN] and shares == [pytest.approx(1 / 3)]
    assert all(trial.rounds == 1 for trial in found)


def test_trees_are_really_run(target: TargetModel) -> None:
    draft = Clover2Draft.from_target(target, num_heads=3).eval()
    texts = [Text((3, 4, number), (0,) * 12) for number in range(2)]
    trees = [PLAIN, "chain:2", "paths:0,1,00", "budget:3", "eagle2:4:2", "shared:2", "chain:3:0.1"]
    found = try_trees(target, draft, trees, make_batches(texts, 2, 1), None, 1, lambda: False)
    assert sorted(trial.tree for trial in found) == sorted(trees)
    assert [trial.speed for trial in found] == sorted((trial.speed for trial in found), reverse=True)
    for trial in found:
        assert trial.batch_size == 2 and trial.seconds > trial.verify_seconds > 0
        assert trial.tau == 1.0 if trial.tree == PLAIN else trial.tau >= 1.0
    assert next(trial for trial in found if trial.tree == PLAIN).steps == 12
