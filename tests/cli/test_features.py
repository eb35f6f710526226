"""`clover features` and `clover train --features`: one run of the target serves two drafts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clover.cli.main import run

STEPS = ["--max-steps", "2", "--max-length", "32", "--batch-tokens", "64"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "d.jsonl"
    path.write_text(
        "\n".join(json.dumps({"text": f"def add_{i}(a, b):\n    return a + b"}) for i in range(8))
    )
    return path


def test_two_drafts_learn_from_one_store(data: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run(["features", "--data", str(data), "--output", str(store), "--max-length", "32"]) == 0
    for system in ("medusa", "recall"):
        output = tmp_path / system
        assert (
            run(["train", "--features", str(store), "--output", str(output), "--system", system, *STEPS]) == 0
        )
        assert json.loads((output / "config.json").read_text())["model_type"] == system


def test_what_is_stored_is_learnt_without_a_tokenizer(
    data: Path, tiny_target: Path, tmp_path: Path, run_clover: Callable
) -> None:
    store, bare = tmp_path / "store", tmp_path / "bare"
    shutil.copytree(tiny_target, bare, ignore=shutil.ignore_patterns("token*"))
    assert run_clover("features", "--target", tiny_target, "--data", data, "--output", store).code == 0
    given = ("train", "--target", bare, "--output", tmp_path / "draft", *STEPS)
    assert run_clover(*given, "--features", store).code == 0
    assert "no tokenizer, which texts need" in run_clover(*given, "--data", data, "--overwrite").err


def test_the_target_may_write_the_texts_first(data: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    given = ["features", "--data", str(data), "--output", str(store), "--regenerate", "--max-length", "40"]
    assert run(given) == 0
    assert run([*given, "--resume"]) == 0


def test_a_store_may_be_resumed_from_inside(
    data: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    given = [
        "features",
        "--target",
        str(tiny_target),
        "--data",
        str(data),
        "--regenerate",
        "--max-length",
        "40",
    ]
    assert run([*given, "--output", str(store)]) == 0
    monkeypatch.chdir(store)
    assert run([*given, "--output", ".", "--resume"]) == 0


def test_what_is_left_out_is_told_before_the_target_runs(
    data: Path, tiny_target: Path, tmp_path: Path, run_clover: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clover.data.texts._CHECKED", 1)
    data.write_text(data.read_text() + "\n" + "{broken\n" * 30)
    given = ("--target", tiny_target, "--data", data, "--output", tmp_path / "store")
    code, out, err = run_clover("features", *given)
    first, last = (line for line in err.splitlines() if "left out" in line)
    assert code == 0 and out.startswith(f"{tmp_path / 'store'}: ")
    assert first.startswith("MORE THAN HALF CANNOT BE USED: left out 30 of 38 texts read; the first: ")
    assert last == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--output", "x"], "nothing to learn from"),
        (["train", "--output", "x", "--features", "s", "--data", "d"], "leave out --data"),
        (["train", "--output", "x", "--features", "nowhere"], "nowhere"),
        (
            ["features", "--data", "d", "--output", "x", "--hidden-state", "first"],
            "--hidden-state is 'first'",
        ),
        (["features", "--data", "d", "--output", "."], "current directory"),
        (["features", "--data", "d", "--output", "x", "--resume"], "d: "),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    assert run(arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
