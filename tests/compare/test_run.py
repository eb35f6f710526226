"""A whole comparison on a tiny target: what it leaves, and how it goes on after an interruption."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clover.compare import CompareOptions, run_compare
from clover.compare import run as run_module
from clover.compare.measuring import Measurement
from clover.compare.results import Record, read_records
from clover.compare.training import Trained
from clover.errors import UserError
from clover.train.learner import Learner

pytestmark = pytest.mark.long

REAL_REPORT = run_module.write_report


@pytest.fixture(autouse=True)
def short_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take their time; all but the first run and the report alone do without."""

    def write(records: Sequence[Record], folder: Path) -> Path:
        (folder / "report.md").write_text(f"{len(records)} results\n")
        return folder / "report.md"

    monkeypatch.setattr(run_module, "write_report", write)


def compare(files: Path, output: Path, **options: Any) -> str:
    """Run the suite; returns what the console has shown."""
    console = Console(file=StringIO(), width=200)
    chosen = CompareOptions(str(files / "suite.toml"), output, device="cpu", dtype="float64", **options)
    try:
        run_compare(chosen, console)
    finally:
        shown = console.file.getvalue()  # type: ignore[attr-defined]
    return shown


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tiny_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "out"
    compare(tiny_files, output)
    return output


def test_every_cell_leaves_a_line(finished: Path) -> None:
    kinds = [row["kind"] for row in lines(finished)]
    assert [kinds.count(k) for k in ("text", "training", "measuring", "accuracy")] == [1, 3, 4, 3]
    assert kinds[0] == "text"


def test_provenance_is_complete(finished: Path) -> None:
    for row in lines(finished):
        assert row["config"] and row["seconds"] >= 0
        origin = row["provenance"]
        assert {name for name, value in origin.items() if value in ("", None)} <= {"revision", "note"}
        assert set(origin["versions"]) == {"clover", "torch", "transformers", "python"}
        assert origin["suite"] == "tiny" and len(origin["suite_hash"]) == 12
        assert (origin["device"], origin["dtype"], origin["threads"]) == ("cpu", "float64", 1)
        assert origin["command"] == "clover compare suite.toml --device cpu --dtype float64"


def test_drafts_are_measured_against_plain_decoding(finished: Path) -> None:
    measured = [
        r.result for r in read_records(finished / "results.jsonl") if isinstance(r.result, Measurement)
    ]
    assert {(m.batch_size, m.temperature) for m in measured} == {(1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0)}
    for one in measured:
        plain, *drafts = one.methods
        assert plain.method.system == "plain" and plain.tau == 1.0 and plain.speedups == (1.0, 1.0)
        assert [(d.method.loss, d.method.tree) for d in drafts] == [
            (loss, tree) for loss in ("paper", "distillation") for tree in ("chain:2", "chain:3")
        ]
        for method in one.methods:
            assert method.identical == method.texts == (3 if one.batch_size == 1 else 4)
            assert len(method.tokens_per_second) == 2 and method.step_milliseconds["verify"] > 0


def test_trainings_saw_equal_tokens(finished: Path) -> None:
    trained = [r.result for r in read_records(finished / "results.jsonl") if isinstance(r.result, Trained)]
    assert len({(t.steps, t.tokens) for t in trained}) == 1
    assert trained[0].steps == 3 and trained[0].parameters > 0
    assert trained[-1].against == "clover2" and trained[-1].loss_weights["label_weight"] == 1.0


def test_the_report_is_there(finished: Path) -> None:
    assert {"report.md", "report.html", "plots"} <= {file.name for file in finished.iterdir()}
    assert {file.suffix for file in (finished / "plots").iterdir()} == {".png", ".svg"}


def test_what_is_done_is_not_done_again(
    tiny_files: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (finished / "results.jsonl").read_text()
    page = (finished / "report.md").read_text()
    monkeypatch.setattr(run_module._Comparison, "_run", lambda *_: pytest.fail("a cell was run again"))
    shown = compare(tiny_files, finished)
    assert "11 cells, 11 of them done" in shown
    assert (finished / "results.jsonl").read_text() == before
    (finished / "report.md").write_text(page)


def test_a_run_that_is_killed_between_cells_repeats_nothing(
    tiny_files: Path, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    once = run_module._Comparison._run

    def counted(self: Any, cell: Any, display: Any) -> Any:
        ran.append(cell.key)
        if len(ran) in (3, 6):
            raise KeyboardInterrupt
        return once(self, cell, display)

    monkeypatch.setattr(run_module._Comparison, "_run", counted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            compare(tiny_files, tmp_path / "out")
        assert (tmp_path / "out" / "report.md").exists()
    compare(tiny_files, tmp_path / "out")
    keys = [row["key"] for row in lines(tmp_path / "out")]
    assert keys == [row["key"] for row in lines(finished)]
    assert len(ran) == len(keys) + 2  # only the two cells that were interrupted ran twice


def test_half_a_line_is_run_again(tiny_files: Path, tmp_path: Path, finished: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (tmp_path / "out.work").symlink_to(finished.with_name("out.work"))
    whole = (finished / "results.jsonl").read_text().splitlines(keepends=True)
    (output / "results.jsonl").write_text("".join(whole[:-1]) + whole[-1][:40])
    compare(tiny_files, output)
    assert [row["key"] for row in lines(output)] == [json.loads(line)["key"] for line in whole]


def test_an_interrupted_training_goes_on_from_its_checkpoint(
    tiny_files: Path, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    step = Learner.step

    def counting(self: Learner, *args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *args)

    monkeypatch.setattr(Learner, "step", counting)
    with pytest.raises(KeyboardInterrupt):
        compare(tiny_files, tmp_path / "out")
    assert [row["kind"] for row in lines(tmp_path / "out")] == ["text"]
    compare(tiny_files, tmp_path / "out")
    drafts = list((tmp_path / "out.work" / "drafts").iterdir())
    assert steps == 3 * len(drafts)  # no step was taken twice

    def weights(folder: Path) -> dict[str, bytes]:
        return {path.parent.name: path.read_bytes() for path in folder.glob("drafts/*/model.safetensors")}

    found = weights(tmp_path / "out.work")
    assert len(found) == len(drafts)
    assert found == weights(finished.with_name("out.work"))


def test_suites_that_share_a_work_directory_train_a_draft_once(
    tiny_files: Path, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Learner, "step", lambda *_: pytest.fail("a draft was trained again"))
    text = (tiny_files / "suite.toml").read_text().replace('name = "tiny"', 'name = "other"')
    file = tiny_files / "other.toml"
    file.write_text(text.replace("batch_sizes = [1, 2]", "batch_sizes = [3]"))
    console = Console(file=StringIO())
    options = CompareOptions(
        str(file), tmp_path / "out", finished.with_name("out.work"), device="cpu", dtype="float64"
    )
    run_compare(options, console)
    found = [row["result"] for row in lines(tmp_path / "out") if row["kind"] == "measuring"]
    assert {row["batch_size"] for row in found} == {3}


def test_the_report_alone_needs_no_model(
    tiny_files: Path, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module.TargetModel, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr(run_module, "write_report", REAL_REPORT)
    output = tmp_path / "copy"
    output.mkdir()
    (output / "results.jsonl").write_text((finished / "results.jsonl").read_text())
    compare(tiny_files, output, report_only=True)
    assert (output / "report.md").read_text() == (finished / "report.md").read_text()
    with pytest.raises(UserError, match="no results in"):
        compare(tiny_files, tmp_path / "empty", report_only=True)


def test_a_tree_that_is_too_deep_is_found_before_the_work(
    tiny_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module._Comparison, "_run", lambda *_: pytest.fail("a cell was run"))
    text = (tiny_files / "suite.toml").read_text().replace('"chain:3"', '"chain:17"')
    file = tiny_files / "deep.toml"
    file.write_text(text)
    with pytest.raises(UserError, match="system 'clover2': .*17"):
        run_compare(CompareOptions(str(file), tmp_path / "out"), Console(file=StringIO()))


def test_results_of_an_older_suite_are_pointed_out(tiny_files: Path, tmp_path: Path, finished: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (tmp_path / "out.work").symlink_to(finished.with_name("out.work"))
    text = (finished / "results.jsonl").read_text()
    row = json.loads(text.splitlines()[-1]) | {"key": "0" * 12}
    (output / "results.jsonl").write_text(text + json.dumps(row) + "\n")
    assert "holds 1 results that the suite does not ask for" in compare(tiny_files, output)
