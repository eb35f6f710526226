import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_errors_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('name = 1\nsystems = [{ system = "clover2" }]\n')
    command = [sys.executable, "-m", "experiments.compare", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "s.toml: name is 1; it must be a valid string" in done.stderr
