import json
from collections.abc import Callable
from pathlib import Path

import pytest

QUICK = ("--max-new-tokens", 12, "--max-minutes", 0.01, "--batch-size", 1, "--batch-size", 2)


@pytest.fixture
def cost(run_clover: Callable, tiny_target: Path, tmp_path: Path) -> Callable:
    """Return a function that asks for the cost on the tiny target."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def area(self):\nimport os\n")
    return lambda *arguments: run_clover("cost", prompts, "--target", tiny_target, *QUICK, *arguments)


def test_before_a_training_it_says_what_tau_must_be(cost: Callable, tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    done = cost("--system", "medusa", "--tau", 2, "--minutes", 60, "--price", 2.5, "--json", file)
    assert done.code == 0, done.err
    found = json.loads(file.read_text())
    assert found["training_seconds"] == 3600
    assert [one["batch_size"] for one in found["trees"]][:1] == [1]
    timed = {one["batch_size"] for one in found["trees"]}
    assert timed == {1, 2} or (
        timed == {1} and "batch size 2" in done.out
    )  # no time was left on a busy machine
    assert {"chain:1", "chain:2"} < {one["tree"] for one in found["trees"]}
    for one in found["trees"]:
        assert set(one["tau_for"]) == {"1", "1.5", "2"}
        assert one["speedup_at"]["2"] > 0
    assert found["provenance"]["command"].startswith("clover cost ")
    assert "2.50 at 2.5 per hour" in done.out


def test_prompts_that_do_not_fit_give_way_to_others(
    run_clover: Callable, tiny_target: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("x" * 300 + "\nimport os\n")
    short = ("--max-new-tokens", 8, "--max-minutes", 0.01, "--batch-size", 1, "--tree", "chain:1")
    done = run_clover("cost", prompts, "--target", tiny_target, "--system", "medusa", *short)
    assert done.code == 0, done.err


def test_a_smaller_vocabulary_and_trees_of_ones_own(cost: Callable, tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    given = ("--system", "medusa", "--draft-vocabulary", 64, "--tree", "chain:2", "--tree", "paths:0,1,00")
    assert cost(*given, "--json", file).code == 0
    found = json.loads(file.read_text())
    trees = ["chain:2", "paths:0,1,00"]
    assert [one["tree"] for one in found["trees"]] in (trees, 2 * trees)
    assert found["training_seconds"] is None


def test_a_large_vocabulary_is_reduced_as_a_training_would(
    cost: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cost("--system", "medusa", "--tree", "chain:2")
    monkeypatch.setattr("clover.drafts.vocabulary._LARGE", 64)
    reduced = cost("--system", "medusa", "--tree", "chain:2")
    assert whole.code == reduced.code == 0
    assert "proposes from" in reduced.out and "proposes from" not in whole.out


def test_a_trained_draft_tells_what_its_training_took(
    cost: Callable, run_clover: Callable, tiny_target: Path, tmp_path: Path
) -> None:
    data, draft, file = tmp_path / "texts.txt", tmp_path / "draft", tmp_path / "cost.json"
    data.write_text("width times height\n" * 40)
    short = ("--max-length", 32, "--batch-tokens", 128, "--max-steps", 2)
    train = run_clover("train", "--data", data, "--target", tiny_target, "--output", draft, *short)
    assert train.code == 0, train.err
    assert cost("--draft", draft, "--json", file, "--tree", "chain:2").code == 0
    seconds = json.loads((draft / "training_config.json").read_text())["result"]["seconds"]
    found = json.loads(file.read_text())
    assert found["training_seconds"] == pytest.approx(seconds)
    assert set(found["trees"][0]["paying_tokens_at"]) == {"2", "3"}  # as in the table, if no --tau is given
    (draft / "training_config.json").write_text('{"result": {}}')
    broken = cost("--draft", draft)
    assert (broken.code, broken.err.count("\n")) == (2, 1) and "training_config.json" in broken.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--system", "lookup"), "lookup was removed"),
        (("--system", "nothing"), "no draft system 'nothing'"),
        (("--tree", "budget:4"), "is no static tree"),
        (("--tau", 0.5), "--tau"),
        (("--minutes", 0), "minutes is 0"),
        (("--max-minutes", -1), "--max-minutes"),
        (("--price", 0), "price is 0"),
        (("--serving-price", 1), "no price of training"),
        (("--price", 1), "give --minutes"),
        (("--draft", "d", "--system", "medusa"), "d has its system"),
        (("--draft", "d", "--draft-vocabulary", 9), "d has its vocabulary"),
        (("--draft", "missing"), "missing"),
        (("--system", "medusa", "--draft-vocabulary", 9999), "draft_vocab_size is 9999"),
        (
            ("--max-new-tokens", 9999, "--system", "medusa"),
            "no prompt leaves room for 9999 new tokens (tried: 2)",
        ),
        (("--json", "."), "is a directory"),
    ],
)
def test_mistakes_take_one_line(
    cost: Callable, arguments: tuple, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cost(*arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
