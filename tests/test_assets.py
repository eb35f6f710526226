"""What is in the package: its size, where its questions come from, and the demo of its chat model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from clover import assets, packaged
from clover.measure.demo import run_demo
from clover.measure.options import DemoOptions
from clover.measure.session import choose_prompts
from clover.target import TargetModel
from tests.packages import describe, install_drafts
from tests.tiny import save_tiny_pair

MOST_BYTES = 25_000_000  # of the drafts for SmolLM2 together


def test_the_drafts_for_smollm2_are_small_and_have_cards() -> None:
    assert sum(file.stat().st_size for file in assets.SMOLLM2.rglob("*") if file.is_file()) <= MOST_BYTES
    for file in assets.SMOLLM2.glob("*/config.json"):
        assert "licence" in file.with_name("README.md").read_text(encoding="utf-8")


def test_the_questions_say_where_they_come_from() -> None:
    rows = [json.loads(line) for line in assets.MT_BENCH.read_text(encoding="utf-8").splitlines()]
    assert len({row["category"] for row in rows}) == len(rows) == 8
    source = assets.MT_BENCH.with_suffix(".md").read_text(encoding="utf-8")
    assert "FastChat" in source and all(str(row["question_id"]) in source for row in rows)


def test_the_demo_of_a_chat_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny target that the package takes for SmolLM2."""
    target, draft = save_tiny_pair(tmp_path, context=2048)
    describe(draft, target)
    folder = install_drafts(tmp_path / "site", "tiny-drafts", "tiny", {"recall": draft}, monkeypatch)
    monkeypatch.setattr(assets, "SMOLLM2", folder)
    monkeypatch.setattr(packaged, "GROUP", "nothing")
    prompts, _ = choose_prompts((), TargetModel.load(target), max_new_tokens=1, limit=24)
    assert [prompt.group for prompt in prompts] == ["mt_bench"] * 8
    chosen = DemoOptions(
        target=str(target),
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
