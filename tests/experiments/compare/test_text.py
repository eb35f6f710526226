"""Texts of a comparison: what the target cannot read is left out."""

from __future__ import annotations

import json
from pathlib import Path

from clover.target import TargetModel
from experiments.compare.suite import TrainingText
from experiments.compare.text import training_text
from tests.tiny import save_tiny_pair


def test_texts_with_tokens_that_the_target_does_not_know_are_left_out(tmp_path: Path) -> None:
    target = TargetModel.load(save_tiny_pair(tmp_path)[0])
    assert target.tokenizer is not None
    target.tokenizer.add_tokens(["strange"])
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("strange the cat", "the cat sat")))
    options = TrainingText(files=(str(file),), max_length=16, prompt_tokens=4)
    (only,) = training_text(target, options, tmp_path / "written.jsonl", lambda *_: None)
    assert target.tokenizer.decode(only.tokens).startswith("<s>the")
