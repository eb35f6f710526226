"""`--weights int8` from training a draft to its use: each command runs, and names the next one with the option."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clover.cpu import int8
from clover.target import TargetModel
from tests.tiny import save_tiny_pair

pytestmark = pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")
SHORT = ["--max-new-tokens", "6", "--max-prompts", "2"]
STEPS = ["--max-steps", "2", "--max-length", "32", "--batch-tokens", "64"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a target, a draft, texts and prompts."""
    directory = tmp_path_factory.mktemp("int8")
    save_tiny_pair(directory, context=512)
    texts = [json.dumps({"text": f"def add_{i}(a, b):\n    return a + b"}) for i in range(8)]
    (directory / "texts.jsonl").write_text("\n".join(texts))
    (directory / "prompts.txt").write_text("def area(self):\nimport os\n")
    return directory


@pytest.fixture
def run(place: Path, run_clover: Callable) -> Callable:
    """Return a function that runs a command on the target with int8 weights."""
    return lambda name, *more: run_clover(name, "--target", place / "target", "--weights", "int8", *more)


def test_features_and_trainings(place: Path, run: Callable, run_clover: Callable, tmp_path: Path) -> None:
    store, named = tmp_path / "store", f"--target {place / 'target'} --weights int8"
    kept = run("features", "--data", place / "texts.jsonl", "--output", store)
    assert kept.code == 0 and f"clover train {named} --features {store}" in kept.err
    for source in (("--features", store), ("--data", place / "texts.jsonl")):
        output = tmp_path / source[0][2:]
        done = run("train", *source, "--output", output, *STEPS)
        assert done.code == 0 and f"clover evaluate {named} --draft {output}" in done.err
        assert json.loads((output / "config.json").read_text())["target_int8"]
    plain = ("--target", place / "target", "--dtype", "bfloat16", "--output", tmp_path / "other", *STEPS)
    other = run_clover("train", *plain, "--features", store)
    assert other.code == 2 and "use the same --target and --weights as clover features did" in other.err


def test_written_texts(place: Path, run: Callable, tmp_path: Path) -> None:
    found = {}
    for size in (1, 2):
        output = tmp_path / f"{size}.jsonl"
        given = ("--prompts", place / "prompts.txt", "--output", output, "--batch-size", size)
        done = run("write", *given, "--max-new-tokens", 8)
        assert done.code == 0
        assert f"clover train --target {place / 'target'} --weights int8 --data {output}" in done.err
        found[size] = sorted(
            json.dumps({**json.loads(line), "clover": 0}) for line in output.read_text().splitlines()
        )
    assert found[1] == found[2]


@pytest.mark.parametrize(
    "command", ["audit", "bench", "evaluate", pytest.param("tune", marks=pytest.mark.long)]
)
def test_measuring(command: str, place: Path, run: Callable, tmp_path: Path) -> None:
    result = tmp_path / "found.json"
    flags = {"audit": ["--prompts"], "bench": ["--rounds", "1", "--prompts"]}.get(command, [])
    done = run(command, "--draft", place / "draft", *SHORT, "--json", result, *flags, place / "prompts.txt")
    assert done.code == 0
    if command == "audit":
        found = json.loads(result.read_text())
        assert (found["verdict"], found["mismatches"]) == ("clean", 0)
        assert "times that of the plain weights" in done.out
    if command == "bench":
        rows = {one["method"]: one for one in map(json.loads, result.read_text().splitlines())}
        assert {one["identical"] for one in rows.values()} == {True, None}
        assert rows["transformers"]["identical"] is None and rows["auto"]["identical"]
        assert rows["transformers"]["label"].endswith(", plain weights")
        assert "near-ties" not in done.out


@pytest.mark.long
def test_cost(run: Callable, tmp_path: Path) -> None:
    done = run("cost", "--max-new-tokens", 8, "--max-minutes", "0.02", "--json", tmp_path / "cost.json")
    assert done.code == 0 and "--weights int8" in done.err + done.out


def test_text_is_the_same_with_and_without_a_draft(place: Path, run: Callable) -> None:
    given = ("def area(self):", "--max-new-tokens", 12)
    texts = {
        run("generate", "--draft", place / "draft", "--tree", tree, *given).out
        for tree in ("plain", "chain:3", "clover2")
    }
    assert len(texts) == 1 and texts != {""}


def test_a_device_without_it_is_refused_in_one_line(place: Path, run: Callable) -> None:
    done = run("generate", "def", "--device", "meta")
    assert done.code == 2 and done.err.splitlines()[-1].startswith("clover: error: ")


@pytest.mark.parametrize("command", ["audit", "bench", "generate"])
def test_compiled_steps_are_refused_before_loading(
    command: str, place: Path, run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TargetModel, "load", None)
    done = run(
        command, "--draft", place / "draft", "--compile", *(["def"] if command == "generate" else SHORT)
    )
    assert done.code == 2 and "compiled steps support neither int8 weights" in done.err
