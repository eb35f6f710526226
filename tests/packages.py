"""Packages of drafts that are installed for a test: a module's folder on the path, and its metadata beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clover import packaged
from clover.target import TargetModel, norms_fingerprint, tensors_fingerprint, tokens_fingerprint

GROUP = "clover.drafts.of_tests"


def install_drafts(
    site: Path, package: str, entry: str, drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Install copies of drafts by name as a package; returns the folder of its module, whose code must not run.

    What is really installed is not seen from then on.
    """
    monkeypatch.setattr(packaged, "GROUP", GROUP)
    module = package.replace("-", "_")
    folder, described = site / module, site / f"{module}-1.2.dist-info"
    for name, place in drafts.items():
        shutil.copytree(place, folder / name)
    (folder / "__init__.py").write_text("raise AssertionError('a package of drafts was imported')")
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (described / "entry_points.txt").write_text(f"[{GROUP}]\n{entry} = {module}\n")
    monkeypatch.syspath_prepend(site)
    return folder


def describe(draft: Path, target: Path, name: str = "Tiny-1M-Instruct", **fields: Any) -> None:
    """Let a draft say that it was trained for a target; `fields` of its config.json come instead."""
    loaded, file = TargetModel.load(target), draft / "config.json"
    described = {
        "target_name": name,
        "target_weights": tensors_fingerprint(loaded),
        "target_norms": norms_fingerprint(loaded),
        "target_tokens": tokens_fingerprint(loaded.tokenizer),
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | described | fields))
