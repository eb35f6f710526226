"""A whole comparison on a tiny target: what it leaves, and how it goes on after an interruption."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clover.api import load
from clover.errors import UserError
from clover.files import locked_directory, locked_file
from experiments.compare.options import CompareOptions
from experiments.compare.run import measure, run_compare
from experiments.recipes.drafts import finish_training
from tests.experiments.compare.runs import compare, lines, measured, trained
from tests.train.steps import at_each_step


def stop_at(number: int) -> Callable[[int], None]:
    """Return what interrupts a training in its step of this number."""

    def stop(step: int) -> None:
        if step == number:
            raise KeyboardInterrupt

    return stop


def test_every_cell_leaves_a_line_with_its_origin(finished: Path) -> None:
    assert (len(trained(finished)), len(measured(finished))) == (2, 4)
    for row in lines(finished):
        assert row["config"] and row["seconds"] >= 0 and row["title"] == "A tiny one"
        origin = row["origin"]
        assert (origin["device"], origin["dtype"]) == ("cpu", "float64")
        assert set(origin["versions"]) == {"clover", "torch", "transformers", "python"}


def test_drafts_are_measured_against_plain_decoding_on_different_prompts(
    finished: Path, tiny_files: Path
) -> None:
    cells = measured(finished)
    assert [(m["task"], m["batch_size"]) for m in cells] == [
        ("lines", 1), ("lines", 2), ("more", 1), ("more", 2),
    ]  # fmt: skip
    trees = ["chain:1", "chain:2", "chain:3"]
    for one in cells:
        plain, *drafts = one["methods"]
        assert plain["method"]["system"] == "plain" and plain["nodes"] == 0
        assert [draft["method"]["tree"] for draft in drafts] == trees
        prompts = 3 if one["batch_size"] == 1 else 2  # whole batches only
        for method in one["methods"]:
            assert method["identical"] == len(method["acceptances"]) == prompts
            assert len(method["batches"]) == prompts // one["batch_size"]
            assert sum(tokens for tokens, _ in method["batches"]) == 8 * prompts
    distilled = next(
        path.parent
        for path in finished.parent.glob("out.work/drafts/*/training_config.json")
        if json.loads(path.read_text())["config"]["loss"]["distillation_weight"]
    )
    model = load(str(tiny_files / "target"), distilled, tree="chain:3", dtype="float64")
    found = model.generate(["one two", "three four", "five six"], max_new_tokens=8)
    counted = [one["histogram"] for one in cells[0]["methods"][-1]["acceptances"]]
    assert counted == [one.acceptance.histogram for one in found]


def test_trainings_saw_equal_tokens(finished: Path) -> None:
    first, second = trained(finished)
    assert first["tokens"] == second["tokens"] and first["parameters"] > 0
    assert first["method"]["steps"] == second["method"]["steps"] == 3
    assert all(sum(column) for column in zip(*first["heads"]["positions"]))
    assert second["against"] == "clover1" and second["method"]["loss"] == "labels"


def test_numbers_of_the_report(finished: Path) -> None:
    cells = [
        one for m in measured(finished) if m["batch_size"] == 1 for one in m["methods"]
        if one["method"]["tree"] == "chain:2"
    ]  # fmt: skip
    histograms = [one["histogram"] for cell in cells for one in cell["acceptances"]]
    steps = sum(map(sum, histograms))
    emitted = sum(count * (length + 1) for one in histograms for length, count in enumerate(one))
    rows = [line.strip("| ").split(" | ") for line in (finished / "report.md").read_text().splitlines()]
    row = next(row for row in rows if row[:4] == ["Clover-1 (paper), chain:2", "0", "1", "2"])
    assert any(re.fullmatch(rf"{emitted / steps:.2f} ± \d\.\d\d", cell) for cell in row) and row[-1] == "yes"


def test_what_is_done_is_not_done_again(tiny_files: Path, finished: Path) -> None:
    before = (finished / "results.jsonl").read_text()
    assert "6 cells, 6 of them done" in compare(tiny_files, finished)
    assert (finished / "results.jsonl").read_text() == before


def test_an_interrupted_training_goes_on_and_nothing_finished_is_repeated(
    tiny_files: Path, tmp_path: Path, finished: Path
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "results.jsonl").write_text(
        '{"key": "'
    )  # of a run that was killed as it wrote its first result
    with at_each_step(stop_at(1)), pytest.raises(KeyboardInterrupt):
        compare(tiny_files, output)
    assert lines(output) == []
    with at_each_step(stop_at(5)), pytest.raises(KeyboardInterrupt):  # the second step of the second training
        compare(tiny_files, output)
    assert len(lines(output)) == len(trained(output)) == 1
    assert (output / "report.md").exists()
    with at_each_step() as steps:
        compare(tiny_files, output)
    assert len(steps) <= 3  # of the second training alone
    assert [row["key"] for row in lines(output)] == [row["key"] for row in lines(finished)]

    def weights(folder: Path) -> dict[str, bytes]:
        return {path.parent.name: path.read_bytes() for path in folder.glob("drafts/*/model.safetensors")}

    found = weights(tmp_path / "out.work")
    assert len(found) == 2 and found == weights(finished.with_name("out.work"))


@pytest.mark.long
def test_suites_that_share_a_work_directory_train_a_draft_once(
    tiny_files: Path, tmp_path: Path, finished: Path
) -> None:
    text = (tiny_files / "suite.toml").read_text().replace('name = "tiny"', 'name = "other"')
    text = text.replace('system = "clover1"', 'system = "clover1"\nname = "again"', 1).replace(
        't = "clover1"', 't = "again"'
    )
    (tiny_files / "other.toml").write_text(text.replace("batch_sizes = [1, 2]", "batch_sizes = [3]"))
    with at_each_step() as steps:
        compare(tiny_files, tmp_path / "out", "other.toml", work=finished.with_name("out.work"))
    assert not steps
    assert {row["batch_size"] for row in measured(tmp_path / "out")} == {3}


TRAINED = """
name = "trained"
title = "Trained before"
target = "{target}"

[[systems]]
name = "first"
system = "clover1"
drafts = ["{first}", "{second}"]
against = "second"

[[systems]]
name = "second"
system = "clover1"
drafts = ["{second}"]
trees = ["chain:1"]

[[systems]]
name = "absent"
system = "medusa"
drafts = ["nowhere"]

[measuring]
trees = ["chain:1", "drawn:chain:2"]
temperatures = [0.0, 1.0]
rounds = 1

[[tasks]]
name = "lines | of text"
file = "lines.txt"
"""


@pytest.mark.long
def test_drafts_that_were_trained_before_are_measured_and_published(
    tiny_files: Path, tmp_path: Path, finished: Path
) -> None:
    work = finished.with_name("out.work") / "drafts"
    first, second = sorted(path.name for path in work.iterdir())
    suite = TRAINED.format(target=tiny_files / "target", first=first, second=second)
    (tmp_path / "trained.toml").write_text(suite)
    places = {"drafts": work, "prompts": tiny_files, "publish": tmp_path / "docs"}
    sizes = {"max_prompts": 2, "max_new_tokens": 8, "tasks": (f"lines | of text={tiny_files}/lines.txt",)}
    shown = compare(tmp_path, tmp_path / "out", "trained.toml", **places, **sizes)
    assert "left out, not there: " in shown and "nowhere" in shown
    assert [(one["method"]["system"], one["method"]["seed"]) for one in trained(tmp_path / "out")] == [
        ("first", 0), ("first", 1), ("second", 0),
    ]  # fmt: skip
    known = [one["recorded"] for one in trained(tmp_path / "out")]
    assert {(one["steps"], one["learning_rate"]) for one in known} == {(3, 1e-3)}
    assert {one["loss"] for one in known} == {"paper", None}  # the other is the suite's own
    trees = {
        (m["temperature"], one["method"]["tree"])
        for m in measured(tmp_path / "out")
        for one in m["methods"][1:]
    }
    assert trees == {(0.0, "chain:1"), (1.0, "chain:1"), (1.0, "drawn:chain:2")}
    content = json.loads((tmp_path / "docs" / "trained.json").read_text())
    assert str(tmp_path) not in content["provenance"]["command"]
    both = [one for one in content["decoding"] if one["system"] == "first" and one["task"] == "all"]
    assert {one["prompts"] for one in both} == {4} and all(one["tau"]["value"] >= 1 for one in both)
    (difference,) = content["differences"]
    assert difference["method"] == "first" and len(difference["top5"]) == 3 and difference["tau"]
    (tmp_path / "docs" / "trained.json").unlink()
    compare(tmp_path, tmp_path / "out", "trained.toml", report_only=True, publish=tmp_path / "docs")
    assert json.loads((tmp_path / "docs" / "trained.json").read_text()) == content
    shutil.copytree(work, tmp_path / "drafts", ignore=shutil.ignore_patterns("training_config.json"))
    with pytest.raises(UserError, match="has no training_config.json.*set accuracy = false"):
        compare(
            tmp_path, tmp_path / "bare", "trained.toml", **places | {"drafts": tmp_path / "drafts"}, **sizes
        )
    (tmp_path / "drafts" / first / "training_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"training_config.json: result is missing"):
        compare(
            tmp_path, tmp_path / "bare", "trained.toml", **places | {"drafts": tmp_path / "drafts"}, **sizes
        )
    with pytest.raises(UserError, match="none of the drafts .* give --drafts DIR"):
        compare(tmp_path, tmp_path / "else", "trained.toml")


@pytest.mark.parametrize(
    ("failing", "cells", "missing"),
    [
        ("clover1", (1, 0), "5 of 6"),
        pytest.param("labelled", (1, 4), "1 of 6", marks=pytest.mark.long),
    ],
)
def test_a_training_that_fails_leaves_the_other_cells(
    tiny_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    cells: tuple[int, int],
    missing: str,
) -> None:
    def train(*given: Any) -> Any:
        if next(systems) == failing:
            raise UserError("the loss is nan")
        return finish_training(*given)

    systems, output = iter(("clover1", "labelled")), tmp_path / "out"
    monkeypatch.setattr("experiments.compare.run.finish_training", train)
    with pytest.raises(
        UserError, match=f"no result of {missing} cells; the first: {failing}, .*: the loss is nan"
    ):
        compare(tiny_files, output)
    assert (len(trained(output)), len(measured(output))) == cells
    assert (output / "report.md").exists()


@pytest.mark.long
def test_a_cell_without_memory_leaves_the_others(
    tiny_files: Path, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_pairs(engines: Any, batches: Any, *given: Any) -> Any:
        if len(batches[0]) == 1:
            raise torch.OutOfMemoryError
        return measure(engines, batches, *given)

    monkeypatch.setattr("experiments.compare.run.measure", measure_pairs)
    with pytest.raises(UserError, match="no result of 2 of 6 cells; the first: measure .*: out of memory"):
        compare(tiny_files, tmp_path / "out", work=finished.with_name("out.work"))
    assert [row["batch_size"] for row in measured(tmp_path / "out")] == [2, 2]


def test_two_processes_do_not_share_a_work_directory_or_results(tiny_files: Path, tmp_path: Path) -> None:
    output, busy = tmp_path / "out", "another process "
    with (
        locked_directory(tmp_path / "out.work"),
        pytest.raises(UserError, match=busy + "works in .*out.work"),
    ):
        compare(tiny_files, output)
    results = output / "results.jsonl"
    with locked_file(results), pytest.raises(UserError, match=busy + "writes .*results.jsonl; wait for it"):
        compare(tiny_files, output, work=tmp_path / "other")


def test_the_report_alone(tiny_files: Path, tmp_path: Path, finished: Path) -> None:
    output = tmp_path / "copy"
    output.mkdir()
    shutil.copy(finished / "results.jsonl", output)
    compare(tiny_files, output, report_only=True)
    assert (output / "report.md").read_text() == (finished / "report.md").read_text()
    with pytest.raises(UserError, match="no results in"):
        compare(tiny_files, tmp_path / "empty", report_only=True)


def test_results_are_not_published_by_the_name_of_a_suite_that_nobody_named(
    tmp_path: Path, finished: Path
) -> None:
    with pytest.raises(UserError, match=f"name the suite of the results in {finished}"):
        run_compare(CompareOptions(output=finished, report_only=True, publish=tmp_path / "docs"))
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"chain:3"', '"chain:17"', "system 'clover1': .*17"),
        ("num_heads = 3", "heads = 3", "system 'clover1': .*no option 'heads'"),
        (
            "batch_sizes = [1, 2]",
            "batch_sizes = [1, 5]",
            "task 'lines' has 4 different prompts .* and 5 are needed",
        ),
        ('"lines.txt"', '"nowhere.txt"', "cannot read .*nowhere.txt"),
    ],
)
def test_what_cannot_work_is_found_before_the_work(
    tiny_files: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = (tiny_files / "suite.toml").read_text()
    assert old in text
    (tiny_files / "bad.toml").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        compare(tiny_files, tmp_path / "out", "bad.toml")
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_a_place_that_cannot_be_written_is_found_before_the_work(tiny_files: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "report.md").mkdir(parents=True)
    with pytest.raises(UserError, match="report.md is a directory"):
        compare(tiny_files, tmp_path / "out")
    (tmp_path / "docs" / "suite.json").mkdir(parents=True)
    with pytest.raises(UserError, match="suite.json is a directory"):
        compare(tiny_files, tmp_path / "else", publish=tmp_path / "docs")
    assert not list(tmp_path.rglob("results.jsonl"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2, which clover did not write so: Invalid JSON"),
        ("[]", "line 2"),
        ('{"label": "poem"}', "line 2, which clover did not write so: key is missing"),
    ],
)
def test_a_line_that_is_no_result_is_named(
    tiny_files: Path, tmp_path: Path, finished: Path, line: str, message: str
) -> None:
    first = (finished / "results.jsonl").read_text().splitlines(keepends=True)[0]
    (tmp_path / "results.jsonl").write_text(f"{first}{line}\n")
    with pytest.raises(UserError, match=message):
        compare(tiny_files, tmp_path, report_only=True)
