"""What comes into a package: the draft in bfloat16, what it was trained for, and a card; and what may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clover import load
from clover.errors import UserError
from clover.target import TargetModel, tensors_fingerprint
from experiments.recipes.options import ReleaseOptions
from experiments.recipes.release import release
from tests.packages import describe, install_drafts
from tests.tiny import save_tiny_pair

MADE = {"machine": "Xeon, 2 threads", "dtype": "bfloat16", "revision": "abc", "date": "2026-11-29T00"}
RECORD = {
    "config": {"max_length": 640},
    "result": {
        "steps": 240,
        "tokens": 102_873,
        "seconds": 600.0,
        "training": {"loss": 1.5, "accuracy": [0.6]},
        "validation": {"loss": 1.4, "accuracy": [0.628, 0.513]},
    },
    "provenance": MADE,
}
GROUP = {"group": "humaneval", "prompts": 8, "tau": 1.8916, "tau_error": 0.127}
MEASURED = {
    "prompts": "8 prompts, 96 new tokens each",
    "settings": [{"tree": "clover2", "temperature": 0.0, "groups": [GROUP]}],
    "provenance": {**MADE, "command": "clover evaluate --weights int8"},
}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """A trained draft with its record, texts, and what was measured."""
    target, draft = save_tiny_pair(tmp_path)
    (draft / "training_config.json").write_text(json.dumps(RECORD))
    described = json.loads((draft / "config.json").read_text())
    known = tensors_fingerprint(TargetModel.load(target))
    (draft / "config.json").write_text(json.dumps(described | {"target_weights": known}))
    (tmp_path / "tau.json").write_text(json.dumps(MEASURED))
    rows = [
        {"prompt": f"question {i}", "response": "yes", "licence": "MIT", "source": "mine"} for i in range(3)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "draft": draft,
        "target": str(target),
        "name": "Tiny-1M-Instruct",
        "model_licence": "MIT",
        "output": tmp_path / "released/1m",
        "data": (tmp_path / "texts.jsonl",),
        "taus": (tmp_path / "tau.json",),
        "notes": ("A stand-in.",),
    }


def test_a_released_draft_is_found_by_its_target_and_has_a_card(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(ReleaseOptions(**options))
    files = sorted(file.name for file in options["output"].iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    kinds = {weight.dtype for weight in load_file(options["output"] / "model.safetensors").values()}
    assert kinds == {torch.bfloat16}
    card = (options["output"] / "README.md").read_text()
    for said in (
        "# Recall (ours) for Tiny-1M-Instruct",
        "Tiny-1M-Instruct (MIT)",
        "240 steps, 102,873 tokens, 10 minutes",
        "63 %, 51 % on held-out texts",
        "| humaneval | `clover2` | 0 | int8 | 1.89 ± 0.13 (8 prompts, 96 new tokens each) |",
        "| mine | MIT | 3 |",
        "2026-11-29, Xeon, 2 threads, bfloat16, revision abc",
        "A stand-in.",
        "640 tokens at most",
    ):
        assert said in card, said
    install_drafts(tmp_path / "site", "tiny-drafts", "tiny", {"1m": options["output"]}, monkeypatch)
    draft = load(options["target"]).engine.draft
    assert draft is not None and draft.config.target_name == "Tiny-1M-Instruct"


def test_what_must_not_be_released(options: dict[str, Any], tmp_path: Path) -> None:
    def refused(problem: str, **changed: Any) -> None:
        with pytest.raises(UserError, match=problem):
            release(ReleaseOptions(**options | changed))
        assert not options["output"].exists()

    other = tmp_path / "other.jsonl"
    text = options["data"][0].read_text()
    other.write_text(text + text.splitlines()[0].replace("MIT", "CC-BY-NC-4.0").replace("n 0", "n 9"))
    refused(r"not permissive: mine \(CC-BY-NC-4.0\)", data=(other,))
    refused("was not written by clover evaluate --json", taus=(options["draft"] / "config.json",))
    describe(options["draft"], Path(options["target"]), target_weights="other")
    with pytest.warns(UserWarning, match="other weights of"):
        refused("was not trained for the weights of")
