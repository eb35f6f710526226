import pytest

from clover.drafting import StepOutcome
from clover.drafting.tuning import PLAIN, Choice
from clover.drafts import RecallDraft
from clover.engine import Request
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


def step(nodes: int, rows: int, seconds: float, caught_up: int = 0) -> Step:
    emitted = (min(nodes, 3),) * rows
    outcome = StepOutcome(rows, 9, None, nodes, emitted, seconds, seconds / 4, caught_up)
    return Step(outcome, seconds / 2)


class Script:
    """Stands in for decoding. Where a tree decodes by itself its seconds are worth nothing: they grow from run to run.

    Args:
        nodes: of each tree's steps when it decodes by itself.
        turns: nodes, seconds and positions caught up of each tree's steps in turn, one step in each run.
    """

    def __init__(self, nodes: dict[str, list[int]], turns: dict[str, list[tuple[int, float, int]]]):
        self.nodes, self.turns = nodes, turns
        self.decoded: list[str] = []
        self.runs: list[list[Request]] = []

    def decode(self, runner: trials._Runner, batch: list[Request]) -> list[Step]:
        self.decoded.append(runner.tree)
        return [step(nodes, len(batch), 1000.0 * len(self.decoded)) for nodes in self.nodes[runner.tree]]

    def watch(self, target, draft, drafters, requests: list[Request], seed: int) -> list[list[Step]]:
        self.runs.append(requests)
        chosen = [steps[seed % len(steps)] for steps in self.turns.values()]
        return [[step(nodes, len(requests), seconds, late)] for nodes, seconds, late in chosen]


@pytest.fixture
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def scripted(monkeypatch: pytest.MonkeyPatch, target: TargetModel, script: Script, **options) -> list[Trial]:
    monkeypatch.setattr(trials._Runner, "warm_up", lambda runner, batch: None)
    monkeypatch.setattr(trials._Runner, "_watch", lambda runner, batch: script.decode(runner, batch))
    monkeypatch.setattr(trials, "watch", script.watch)
    draft = RecallDraft.from_target(target, num_heads=3)
    options = {"expected": float, "repeats": 3, "enough": lambda share: False} | options
    batches = make_batches([text(number, 5) for number in range(4)], 2, most=2)
    return try_trees(target, draft, list(script.nodes), batches, **options)


def test_steps_cost_what_they_take_in_turn(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(
        {PLAIN: [1, 1], "chain:2": [3], "chain:3": [4]},
        {
            PLAIN: [(1, 1.0, 0), (1, 5.0, 0), (1, 1.1, 0)],  # the median counts
            "chain:2": [(3, 2.0, 0), (3, 2.2, 0), (3, 9.0, 1)],  # what was caught up on does not
            "chain:3": [(4, 1.9, 0)],
        },
    )
    found = scripted(monkeypatch, target, script)
    assert [trial.tree for trial in found] == ["chain:3", "chain:2", PLAIN]
    first = found[0]
    assert first.choice() == Choice(2, "chain:3", 3.0, pytest.approx(1.9), pytest.approx(6 / 1.9))
    assert (first.tokens, first.steps, first.nodes, first.timed) == (12, 2, 4, 3)
    assert first.seconds == pytest.approx(3.8), "two batches were decoded"
    assert (first.draft_seconds, first.verify_seconds) == pytest.approx((3.8 / 4, 3.8 / 2))
    assert found[1].seconds / found[1].steps == pytest.approx(2.1)
    assert found[2].seconds / found[2].steps == pytest.approx(1.1) and found[2].tau == 1.0
    assert Trial(**first.to_json()) == first


def test_trees_of_varying_depth_are_timed_by_what_their_depth_should_take(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turn its trees had 2 and 3 nodes and took twice what was expected; in whole batches they had 5 on average."""
    script = Script(
        {PLAIN: [1], "chain:3:0.1": [4, 6]},
        {PLAIN: [(1, 1.0, 0)], "chain:3:0.1": [(2, 4.0, 0), (3, 6.0, 0)]},
    )
    drafted = next(trial for trial in scripted(monkeypatch, target, script) if trial.tree != PLAIN)
    assert drafted.seconds / drafted.steps == pytest.approx(10.0) and drafted.mean_nodes == 5.0


def test_texts_go_on_where_steps_are_timed(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script({PLAIN: [1]}, {PLAIN: [(1, 1.0, 0)]})
    scripted(monkeypatch, target, script)
    room = min(64, target.context_length - 2)
    assert all(one.max_new_tokens == room and one.eos == () for batch in script.runs for one in batch)
    assert [[one.prompt[1] for one in batch] for batch in script.runs] == [[0, 1], [2, 3], [0, 1]]


def test_time_that_is_over_ends_a_trial_after_a_batch_and_a_few_steps(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script({PLAIN: [1], "chain:1": [2]}, {PLAIN: [(1, 1.0, 0)], "chain:1": [(2, 1.0, 0)]})
    shares, asked = list[float](), list[float]()
    options = {"repeats": 30, "enough": lambda share: bool(asked.append(share)) or True}
    scripted(monkeypatch, target, script, progress=shares.append, **options)
    assert sorted(script.decoded) == ["chain:1", PLAIN] and len(script.runs) == 9
    assert asked == [0.6, 1.0]
    assert shares == pytest.approx([0.3, *(0.6 + 0.4 * steps / 30 for steps in range(1, 10))])


def test_trees_are_really_run(target: TargetModel) -> None:
    draft = RecallDraft.from_target(target, num_heads=3).eval()
    texts = [Text((3, 4, number), (0,) * 12) for number in range(2)]
    trees = [PLAIN, "chain:2", "paths:0,1,00", "budget:3", "eagle2:4:2", "chain:3:0.1"]
    found = try_trees(target, draft, trees, make_batches(texts, 2, 1), float, 2, lambda share: False)
    assert sorted(trial.tree for trial in found) == sorted(trees)
    assert [trial.speed for trial in found] == sorted((trial.speed for trial in found), reverse=True)
    for trial in found:
        assert trial.batch_size == 2 and trial.seconds > trial.verify_seconds > 0
        assert trial.tau == 1.0 if trial.tree == PLAIN else trial.tau >= 1.0
    assert next(trial for trial in found if trial.tree == PLAIN).steps == 12
