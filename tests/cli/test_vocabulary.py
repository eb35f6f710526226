"""``clover vocabulary`` and ``clover train --set draft_vocab_size``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clover.drafts import RecallDraft, load_draft
from clover.target import TargetModel
from tests.cli.conftest import END

TEXT = "def area(self, width, height): return width * height"


@pytest.fixture
def draft(tiny_target: Path, tmp_path: Path) -> Path:
    RecallDraft.from_target(TargetModel.load(tiny_target)).save_pretrained(tmp_path / "draft")
    (tmp_path / "draft" / "training_config.json").write_text("{}")
    return tmp_path / "draft"


def frequent(tiny_target: Path, size: int) -> list[int]:
    """The most frequent byte tokens of the text, and the token that ends it."""
    tokenizer = TargetModel.load(tiny_target).tokenizer
    assert tokenizer is not None
    counts = Counter([*tokenizer(TEXT)["input_ids"], END])
    return sorted(sorted(range(END + 1), key=lambda token: (-counts[token], token))[:size])


def test_a_draft_gets_a_vocabulary(
    run_clover: Callable, tiny_target: Path, draft: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    small = tmp_path / "small"
    flags = ["--target", tiny_target, "--data", tmp_path / "text.txt", "--output", small]
    done = run_clover("vocabulary", draft, *flags, "--size", 9)
    assert done.code == 0, done.err
    assert "proposes from 9 of 257 tokens, " in done.out
    assert (small / "training_config.json").exists()
    target = TargetModel.load(tiny_target)
    loaded, whole = load_draft(small, target), load_draft(draft, target)
    assert loaded.d2t is not None and loaded.d2t.tolist() == frequent(tiny_target, 9)
    for name, value in whole.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    texts = [
        run_clover("generate", TEXT, "--target", tiny_target, *how, "--json", "--max-new-tokens", 12).out
        for how in (["--tree", "plain"], ["--draft", small])
    ]
    assert json.loads(texts[0])["tokens"] == json.loads(texts[1])["tokens"]


def test_what_takes_long_with_many_texts_is_told(
    run_clover: Callable, tiny_target: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("clover.measure.report.progress.Progress.say", lambda _, doing: said.append(doing))
    (tmp_path / "text.jsonl").write_text(f'{{"text": "{TEXT}"}}\n' * 2)
    flags = ["--target", tiny_target, "--data", tmp_path / "text.jsonl", "--output", tmp_path / "small"]
    assert run_clover("vocabulary", draft, *flags, "--size", 9).code == 0
    counted = [f"counting the tokens: {number} texts" for number in (1, 2)]
    assert said == ["loading target and draft", "reading the texts", *counted]


def test_texts_that_the_target_wrote_are_counted_too(
    run_clover: Callable, tiny_target: Path, draft: Path, tmp_path: Path
) -> None:
    path = tmp_path / "draft.123.regenerated.jsonl"
    path.write_text(
        json.dumps({"index": 0, "tokens": [7, 7, 9, 9, 9, 8], "loss_mask": [1, 1, 0, 0, 0, 1]}) + "\n"
    )
    flags = ["--target", tiny_target, "--data", path, "--output", tmp_path / "small", "--size", 2]
    done = run_clover("vocabulary", draft, *flags)
    assert (done.code, done.out.split("tokens, ")[1]) == (0, "100.0% of those in the texts\n")
    loaded = load_draft(tmp_path / "small", TargetModel.load(tiny_target))
    assert loaded.d2t is not None and loaded.d2t.tolist() == [7, 8]


@pytest.mark.parametrize(("size", "message"), [(258, "draft_vocab_size is 258"), (0, "--size")])
def test_impossible_sizes(
    run_clover: Callable, tiny_target: Path, draft: Path, size: int, message: str
) -> None:
    flags = ["--target", tiny_target, "--data", "x.txt", "--output", draft.parent / "small", "--size", size]
    done = run_clover("vocabulary", draft, *flags)
    assert done.code == 2 and message in done.err
    assert not (draft.parent / "small").exists()


def test_training_chooses_the_frequent_tokens(
    run_clover: Callable, tiny_target: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    flags = ["--target", tiny_target, "--data", tmp_path / "text.txt", "--max-steps", 1]
    for system in ("clover2", "medusa"):
        output = tmp_path / system
        done = run_clover(
            "train", *flags, "--output", output, "--system", system, "--set", "draft_vocab_size=9"
        )
        assert done.code == 0, done.err
        trained = load_draft(output, TargetModel.load(tiny_target))
        assert trained.d2t is not None and trained.d2t.tolist() == frequent(tiny_target, 9)
