"""``clover copies``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clover.drafts import Clover2Draft, RecallDraft, load_draft
from clover.target import TargetModel

TEXT = "def area(self, width, height): return width * height"


@pytest.fixture
def draft(tiny_target: Path, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    RecallDraft.from_target(TargetModel.load(tiny_target)).save_pretrained(tmp_path / "draft")
    (tmp_path / "draft" / "training_config.json").write_text("{}")
    return tmp_path / "draft"


def test_a_draft_learns_how_much_to_copy_and_the_text_stays_the_same(
    run_clover: Callable, tiny_target: Path, draft: Path, tmp_path: Path
) -> None:
    written = [
        json.loads(
            run_clover(
                "generate",
                text,
                "--target",
                tiny_target,
                "--tree",
                "plain",
                "--json",
                "--max-new-tokens",
                120,
            ).out
        )["tokens"]
        for text in (TEXT, "class Area:", "import os")
    ]
    lines = [{"index": i, "tokens": row, "loss_mask": [1] * len(row)} for i, row in enumerate(written)]
    path = tmp_path / "own.regenerated.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    copying = tmp_path / "copying"
    done = run_clover("copies", draft, "--target", tiny_target, "--data", path, "--output", copying)
    assert done.code == 0, done.err
    assert "copied tokens get " in done.out  # greedy texts of a tiny model go in circles
    assert (copying / "training_config.json").exists()
    loaded = load_draft(copying, TargetModel.load(tiny_target))
    assert len(loaded.config.copy_shares) == 4 and max(loaded.config.copy_shares) > 0.5
    flags = ["--target", tiny_target, "--draft", copying, "--json", "--max-new-tokens", 120]
    assert json.loads(run_clover("generate", TEXT, *flags).out)["tokens"] == written[0]


def test_other_systems_and_empty_texts_are_refused(
    run_clover: Callable, tiny_target: Path, draft: Path, tmp_path: Path
) -> None:
    Clover2Draft.from_target(TargetModel.load(tiny_target)).save_pretrained(tmp_path / "paper")
    (tmp_path / "text.txt").write_text(TEXT)
    flags = ["--target", tiny_target, "--data", tmp_path / "text.txt", "--output", tmp_path / "x"]
    done = run_clover("copies", tmp_path / "paper", *flags)
    assert done.code == 2 and "is a clover2 draft, which copies nothing; recall does" in done.err
    (tmp_path / "text.txt").write_text("")
    done = run_clover("copies", draft, *flags)
    assert done.code == 2 and "holds no records" in done.err
    flags[3] = tmp_path / "unlearnt.regenerated.jsonl"
    flags[3].write_text(json.dumps({"index": 0, "tokens": [1] * 9, "loss_mask": [0] * 9}) + "\n")
    done = run_clover("copies", draft, *flags)
    assert done.code == 2 and "none has a token to be learnt" in done.err
    assert not (tmp_path / "x").exists()
