"""The package drafts/coder: what is in it, and the file of the model that `make coder` gets."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from clover import packaged
from clover.drafts.loading import read_config
from drafts.coder import model

PACKAGE = Path(__file__).parents[1] / "drafts/coder"
MOST_BYTES = 120_000_000  # of all its drafts


def test_the_entry_point_leads_to_the_folder() -> None:
    metadata = (PACKAGE / "pyproject.toml").read_text()
    assert f'[project.entry-points."{packaged.GROUP}"]\ncoder = "clover_drafts_coder"\n' in metadata
    assert [file.name for file in (PACKAGE / "clover_drafts_coder").glob("*.py")] == ["__init__.py"]


def test_a_draft_of_it_is_whole_and_says_what_it_is_for() -> None:
    folders = [
        one for one in (PACKAGE / "clover_drafts_coder").iterdir() if one.is_dir() and "__" not in one.name
    ]
    assert {one.name for one in folders} <= set(model.MODELS)
    for folder in folders:  # none before its weights are there in their last form
        files = sorted(file.name for file in folder.iterdir() if file.name != "tuning.json")
        assert files == ["README.md", "config.json", "model.safetensors"]
        described = read_config(folder)
        assert described["target_name"] == f"Qwen2.5-Coder-{folder.name.upper()}-Instruct"
        assert described["target_weights"] and described["target_norms"] and described["target_tokens"]
        assert described["dtype"] == "bfloat16"
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) <= MOST_BYTES


def test_the_model_is_put_together_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def blocks(package: str) -> list[bytes]:
        asked.append(package)
        return [package.encode(), b"."]

    digest = hashlib.sha256(b"part-1.part-2.").hexdigest()
    monkeypatch.setattr(model, "_blocks", blocks)
    monkeypatch.setattr(model, "MODELS", {"1b": ("part-{}", 2, digest), "2b": ("part-{}", 1, digest)})
    for _ in range(2):
        assert model.get("1b", tmp_path / "models").read_bytes() == b"part-1.part-2."
    assert asked == ["part-1", "part-2"]
    with pytest.raises(SystemExit, match="another file than was expected"):
        model.get("2b", tmp_path / "models")
    assert [file.name for file in (tmp_path / "models").iterdir()] == ["coder-1b.gguf"]
