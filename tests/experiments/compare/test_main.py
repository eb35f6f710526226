import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.compare.__main__ import app
from experiments.compare.options import CompareOptions


def test_compare_passes_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CompareOptions] = []
    monkeypatch.setattr("experiments.compare.run.run_compare", seen.append)
    assert CliRunner().invoke(app, ["quick"]).exit_code == 0
    flags = ["--output", "out", "--report-only", "--dtype", "float32", "--device", "cpu"]
    assert CliRunner().invoke(app, ["x.toml", *flags]).exit_code == 0
    assert seen == [
        CompareOptions(suite="quick"),
        CompareOptions(suite="x.toml", output=Path("out"), device="cpu", dtype="float32", report_only=True),
    ]


def test_errors_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('name = 1\nsystems = [{ system = "clover2" }]\n')
    command = [sys.executable, "-m", "experiments.compare", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "s.toml: name is 1; it must be a valid string" in done.stderr
