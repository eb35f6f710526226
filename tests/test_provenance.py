from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

import clover
from clover import provenance


def test_versions_and_machine() -> None:
    assert provenance.versions()["clover"] == clover.__version__
    assert provenance.machine(torch.device("cpu")).endswith("1 thread")


def test_revision_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.revision() is None
    file = tmp_path / "__init__.py"
    file.write_text("")
    git("init")
    assert provenance.revision() is None  # a checkout, but not of this package
    git("add", ".")
    git("commit", "-m", "first")
    clean = provenance.revision()
    assert clean is not None and len(clean) >= 12 and not clean.endswith("-dirty")
    file.write_text("x = 1\n")
    assert provenance.revision() == f"{clean}-dirty"
