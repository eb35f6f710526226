from collections.abc import Callable
from pathlib import Path

import pytest

from clover.measure.options import CompareOptions


def test_compare_passes_its_options(run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CompareOptions] = []
    monkeypatch.setattr("clover.compare.run.run_compare", seen.append)
    assert run_clover("compare", "quick").code == 0
    flags = ["--output", "out", "--report-only", "--dtype", "float32", "--device", "cpu"]
    assert run_clover("compare", "x.toml", *flags).code == 0
    assert seen == [
        CompareOptions(suite="quick"),
        CompareOptions(suite="x.toml", output=Path("out"), device="cpu", dtype="float32", report_only=True),
    ]


def test_errors_are_one_line(run_clover: Callable, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("name = 1\n")
    done = run_clover("compare", file)
    assert done.code == 2
    assert done.err.startswith("clover: error: ") and done.err.count("\n") == 1
    assert "s.toml: name is 1; it must be a valid string" in done.err
