from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

import clover
from clover.measure.report.provenance import Provenance, installed, machine, revision, versions


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


def test_an_installed_package_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    place = tmp_path / "worn-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: worn\nVersion: 1.0\n")

    def digest(*lines: str) -> str | None:
        (place / "RECORD").write_text("".join(f"{line}\n" for line in lines))
        return installed("worn")

    wheel = ("clover/__init__.py,sha256=ab,3", "clover/api.py,sha256=cd,5")
    here = ("../../../bin/clover,sha256=xy,1", "clover/__pycache__/api.cpython-311.pyc,,")
    found = digest(*wheel, *here)
    assert found is not None and found.startswith("sha256:") and len(found) == 19
    assert digest(*reversed(wheel)) == found != digest(wheel[0], "clover/api.py,sha256=ce,5")
    assert digest(*here) is None is installed("nowhere")
