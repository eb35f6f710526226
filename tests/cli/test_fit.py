"""``clover train --max-steps 0`` fits vocabulary and copies of a trained draft, and learns nothing."""

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
    torch.manual_seed(0)
    RecallDraft.from_target(TargetModel.load(tiny_target)).save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


@pytest.fixture
def fit(run_clover: Callable, tiny_target: Path, draft: Path, tmp_path: Path) -> Callable:
    """Return a function that fits the draft to a file of texts and writes it to `fitted`."""

    def call(data: Path, *arguments: object, start_from: Path | None = draft) -> tuple[int, str, str]:
        flags = ["--target", tiny_target, "--data", data, "--output", tmp_path / "fitted", "--max-steps", 0]
        start = [] if start_from is None else ["--start-from", start_from]
        return run_clover("train", *flags, *start, "--dtype", "float32", *arguments)

    return call


def frequent(tiny_target: Path, size: int) -> list[int]:
    """The most frequent byte tokens of the text, and the token that ends it."""
    tokenizer = TargetModel.load(tiny_target).tokenizer
    assert tokenizer is not None
    counts = Counter([*tokenizer(TEXT)["input_ids"], END])
    return sorted(sorted(range(END + 1), key=lambda token: (-counts[token], token))[:size])


def test_a_draft_gets_a_vocabulary_and_keeps_its_weights(
    fit: Callable, run_clover: Callable, tiny_target: Path, draft: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    done = fit(tmp_path / "text.txt", "--set", "draft_vocab_size=9")
    assert done.code == 0, done.err
    assert f"fitted {draft} to the texts; accuracy of the heads " in done.out
    target, small = TargetModel.load(tiny_target), tmp_path / "fitted"
    loaded, whole = load_draft(small, target), load_draft(draft, target)
    assert loaded.d2t is not None and loaded.d2t.tolist() == frequent(tiny_target, 9)
    for name, value in whole.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    generate = ["generate", TEXT, "--target", tiny_target, "--json", "--max-new-tokens", 12]
    texts = [run_clover(*generate, *how).out for how in (["--tree", "plain"], ["--draft", small])]
    assert json.loads(texts[0])["tokens"] == json.loads(texts[1])["tokens"]


def test_a_draft_learns_how_much_to_copy_and_keeps_its_vocabulary(
    fit: Callable, run_clover: Callable, tiny_target: Path, draft: Path, tmp_path: Path
) -> None:
    target = TargetModel.load(tiny_target)
    part = load_draft(draft, target)
    part.reduce_vocabulary(torch.arange(0, 257, 2))
    part.save_pretrained(draft)
    generate = ["generate", "--target", tiny_target, "--json", "--max-new-tokens", 120]
    written = [
        json.loads(run_clover(*generate, "--tree", "plain", text).out)["tokens"]
        for text in (TEXT, "class Area:", "import os")
    ]
    # files as earlier versions of --regenerate wrote them
    lines = [{"index": i, "tokens": row, "loss_mask": [1] * len(row)} for i, row in enumerate(written)]
    path = tmp_path / "own.regenerated.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = fit(path)
    assert done.code == 0, done.err
    loaded = load_draft(tmp_path / "fitted", target)
    # greedy texts of a tiny model go in circles
    assert len(loaded.config.copy_shares) == 4 and max(loaded.config.copy_shares) > 0.5
    assert loaded.d2t is not None and part.d2t is not None and torch.equal(loaded.d2t, part.d2t)
    drafted = json.loads(run_clover(*generate, "--draft", tmp_path / "fitted", TEXT).out)["tokens"]
    assert drafted == written[0]
    record = json.loads((tmp_path / "fitted" / "training_config.json").read_text())
    assert record["result"]["steps"] == 0 and record["config"]["start_from"] == str(draft)


def test_what_cannot_be_fitted_is_refused(fit: Callable, draft: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    unlearnt = tmp_path / "unlearnt.jsonl"
    unlearnt.write_text(json.dumps({"tokens": [1] * 9, "loss_mask": [0] * 9}) + "\n")
    for done, message in (
        (fit(tmp_path / "text.txt", start_from=None), "give a trained draft to fit, by --start-from"),
        (fit(tmp_path / "text.txt", "--set", "draft_vocab_size=258"), "draft_vocab_size is 258"),
        (fit(unlearnt), "no token is marked to be learnt"),
    ):
        assert done.code == 2 and message in done.err.splitlines()[-1]
    assert not (tmp_path / "fitted").exists()
