import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clover.cost import probe

TEXTS = [f"def area_{i}(self, width, height):\n    return width * height * {i}\n" for i in range(120)]
QUICK = ("--max-new-tokens", 3, "--batches", 6, "--tree", "chain:2")
SHORT = ("--max-length", 64, "--batch-tokens", 256)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("".join(text.splitlines()[0] + "\n" for text in TEXTS[:8]))
    return path


@pytest.fixture
def trained(run_clover: Callable, tiny_target: Path, data: Path, tmp_path: Path) -> Path:
    """A draft that was trained for two steps, partly on its own texts."""
    output = tmp_path / "draft"
    code, _, err = run_clover(
        "train", "--data", data, "--target", tiny_target, "--output", output, *SHORT, "--max-steps", 2
    )
    assert code == 0
    assert f"clover cost --target {tiny_target} --draft {output}" in err
    return output


@pytest.fixture
def cost(run_clover: Callable, tiny_target: Path) -> Callable:
    """Return a function that asks for the cost on the tiny target."""
    return lambda *arguments: run_clover("cost", *arguments, "--target", tiny_target, *QUICK)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where probes keep their drafts."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_fact_tells_what_the_record_holds(
    cost: Callable, trained: Path, prompts: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cost.json"
    code, out, _ = cost(prompts, "--draft", trained, "--price", 3.6, "--json", file)
    assert code == 0
    found = json.loads(file.read_text())
    record = json.loads((trained / "training_config.json").read_text())
    assert found["kind"] == "fact" and found["probe"] is None
    assert found["training"]["seconds"] == record["result"]["seconds"]
    assert found["training"]["tokens"] == record["result"]["tokens"]
    assert found["training"]["peak_memory"] == record["resources"]["peak_memory_bytes"] > 2**20
    assert found["training"]["checkpoint"] == record["resources"]["checkpoint_bytes"] > 0
    assert found["training"]["draft"] == sum(path.stat().st_size for path in trained.iterdir())
    assert found["money"] == pytest.approx(found["training"]["seconds"] / 1000)
    assert found["speedup"]["low"] <= found["speedup"]["value"] <= found["speedup"]["high"]
    assert found["provenance"]["command"].startswith(f"clover cost {prompts} --target")
    assert "3.6 per hour" in out
    assert ("does not pay" in out) or ("paid for itself" in out)


def test_writing_the_texts_counts_as_training(
    cost: Callable, run_clover: Callable, tiny_target: Path, data: Path, tmp_path: Path, prompts: Path
) -> None:
    output, file = tmp_path / "own", tmp_path / "cost.json"
    train = ["train", "--data", data, "--target", tiny_target, "--output", output, *SHORT, "--max-steps", 1]
    assert run_clover(*train, "--regenerate").code == 0
    (noted,) = tmp_path.glob("own.*.seconds.json")
    seconds = json.loads(noted.read_text())["seconds"]
    assert seconds > 0
    noted.write_text('{"seconds": 1000.0}')  # as of an earlier run that wrote the same texts
    assert run_clover(*train, "--regenerate", "--overwrite").code == 0
    assert cost(prompts, "--draft", output, "--price", 36, "--json", file).code == 0
    found = json.loads(file.read_text())
    assert found["training"]["writing_seconds"] == pytest.approx(1000.0, abs=100)
    assert found["money"] == pytest.approx(
        (found["training"]["seconds"] + found["training"]["writing_seconds"]) / 100
    )


def test_prompts_left_out_are_openings_of_held_out_texts(cost: Callable, trained: Path) -> None:
    code, _, err = cost("--draft", trained)  # 2 % of 120 texts are too few
    assert (code, err.count("\n")) == (2, 1)
    assert "give more prompts" in err
    record = json.loads((trained / "training_config.json").read_text())
    record["config"]["validation_share"] = 0.3
    (trained / "training_config.json").write_text(json.dumps(record))
    assert cost("--draft", trained).code == 0


def test_older_records_lack_what_was_not_recorded(cost: Callable, trained: Path, prompts: Path) -> None:
    record = json.loads((trained / "training_config.json").read_text())
    del record["resources"], record["config"]["writing_seconds"]
    (trained / "training_config.json").write_text(json.dumps(record))
    code, out, _ = cost(prompts, "--draft", trained)
    assert code == 0
    assert "peak memory     not recorded" in out
    assert "per hour" not in out


def test_forecast_leaves_nothing_behind(cost: Callable, data: Path, tmp_path: Path, scratch: Path) -> None:
    file = tmp_path / "cost.json"
    arguments = (
        "--data",
        data,
        "--minutes",
        60,
        "--probe-minutes",
        0.004,
        "--price",
        2,
        "--json",
        file,
        *SHORT,
    )
    code, out, _ = cost(*arguments, "--regenerate-minutes", 30)
    assert code == 0
    assert list(scratch.iterdir()) == []
    found = json.loads(file.read_text())
    probed = found["probe"]
    assert found["kind"] == "forecast"
    assert found["training"]["seconds"] == pytest.approx(3600)
    assert found["training"]["writing_seconds"] == 1800
    assert found["money"] == pytest.approx(3.0)
    assert found["training"]["tokens"] == pytest.approx(
        probed["second"]["tokens"] * 2 ** probed["doublings"], rel=1e-3
    )
    assert 1.5 < probed["second"]["tokens"] / probed["first"]["tokens"] < 2.5
    assert len(probed["second"]["accuracy"]) == 5
    assert found["speedup"]["value"] >= probed["speedup"]["value"]
    assert "forecast" in out and "after 1:30 h" in out and "with 90 %" in out


def test_length_in_steps_gives_time_at_the_probes_pace(cost: Callable, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    arguments = ("--data", data, "--max-steps", 100_000, "--probe-minutes", 0.004, "--json", file, *SHORT)
    assert cost(*arguments, "--system", "medusa").code == 0
    found = json.loads(file.read_text())
    assert found["training"]["steps"] == 100_000
    assert found["training"]["seconds"] > 60


def test_interrupted_probe_leaves_nothing_behind(
    cost: Callable, data: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> None:
        assert list(scratch.iterdir()) != []
        raise KeyboardInterrupt

    monkeypatch.setattr(probe, "measure_pair", interrupt)
    arguments = ("--data", data, "--minutes", 60, "--probe-minutes", 0.004, *SHORT)
    assert cost(*arguments).code == 130
    assert list(scratch.iterdir()) == []


def test_stopped_training_of_a_probe_is_an_interruption(
    cost: Callable, data: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clover.train import TrainResult

    stopped = TrainResult(finished=False, steps=1, tokens=9, seconds=1.0, training={}, validation=None)
    monkeypatch.setattr(probe, "train", lambda *_arguments, **_options: stopped)
    assert cost("--data", data, "--minutes", 60, *SHORT).code == 130
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --draft DIR"),
        (("--draft", "d", "--data", "f"), "give either --draft DIR"),
        (("--data", "f"), "--minutes M or --max-steps N"),
        (("--data", "f", "--minutes", 1, "--max-steps", 1), "--minutes M or --max-steps N"),
        (("--data", "f", "--minutes", 1, "--probe-minutes", 0), "probe_minutes is 0"),
        (("--data", "f", "--minutes", -1), "max_minutes is -1.0"),
        (("--draft", "d", "--minutes", 1), "d is trained already"),
        (("--draft", "d", "--price", 0), "price is 0"),
        (("--draft", "d", "--serving-price", 1), "no price of training"),
        (("--draft", "d"), "d does not say what its training took"),
        (("--draft", "d", "--json", "."), "is a directory"),
        (("--data", "missing.jsonl", "--minutes", 1), "missing.jsonl"),
    ],
)
def test_mistakes_take_one_line(
    cost: Callable, arguments: tuple, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = cost(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_probe_longer_than_the_training_is_refused(cost: Callable, data: Path) -> None:
    code, _, err = cost("--data", data, "--max-steps", 1, "--probe-minutes", 0.01, *SHORT)
    assert code == 2
    assert "more than the training that is planned" in err


def test_broken_record_is_named(cost: Callable, trained: Path) -> None:
    (trained / "training_config.json").write_text('{"result": {}}')
    code, _, err = cost("--draft", trained)
    assert code == 2
    assert "is not the record of a training" in err
