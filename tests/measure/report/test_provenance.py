from __future__ import annotations

import subprocess
from pathlib import Path

import torch

import clover
from clover.measure.report.provenance import Provenance, machine, revision, versions


def test_here() -> None:
    found = Provenance.here("clover work", torch.device("cpu"), torch.bfloat16)
    assert (found.device, found.dtype, found.threads) == ("cpu", "bfloat16", torch.get_num_threads())
    assert found.versions == versions() and found.versions["clover"] == clover.__version__
    assert found.machine == machine(torch.device("cpu"))
    assert found.line.startswith(found.date[:10])
    assert dict(found.facts)["command"].startswith("clover work")


def test_revision_of_a_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    assert revision(tmp_path) is None
    file = tmp_path / "__init__.py"
    file.write_text("")
    git("init")
    assert revision(tmp_path) is None  # a checkout, but not of this package
    git("add", ".")
    git("commit", "-m", "first")
    clean = revision(tmp_path)
    assert clean is not None and len(clean) >= 12 and not clean.endswith("-dirty")
    file.write_text("x = 1\n")
    assert revision(tmp_path) == f"{clean}-dirty"
