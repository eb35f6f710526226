"""`benchmarks/predicted.py`, `record.py` and `lengths.py` on a tiny pair: that they run, and what they write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import lengths, predicted, record
from tests.tiny import save_tiny_pair


@pytest.fixture
def named(tmp_path: Path) -> list[str]:
    """A pair, as the scripts are told of it."""
    target, draft = save_tiny_pair(tmp_path)
    return ["--target", str(target), "--draft", str(draft)]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    (tmp_path / "prompts.txt").write_text("the quick fox\njumps over\n")
    return str(tmp_path / "prompts.txt")


def test_prediction_and_measurement_stand_side_by_side(
    named: list[str], prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--tree", "chain:2", "--rounds", "1", "--steps", "1", "--seconds", "0", "--max-new-tokens", "8"]
    monkeypatch.setattr(sys, "argv", ["predicted.py", prompts, *named, *short])
    predicted.main()
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["batch_size"], line["tree"]) == (1, "chain:2")
    assert line["tau"] >= 1 and line["ratio"] == line["predicted"] / line["measured"]


def test_a_recording_has_a_depth_for_each_token(
    named: list[str], prompts: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = ["--name", "tiny", "--sizes", "1", "--output", str(tmp_path), "--prompts", prompts]
    monkeypatch.setattr(sys, "argv", ["record.py", *named, *where])
    monkeypatch.setattr(record, "STEPS", 1)
    record.main()
    found = json.loads((tmp_path / "paths-tiny.json").read_text())
    assert [one["temperature"] for one in found["texts"]] == [0.0, 0.0, 0.8, 0.8]
    assert all(len(one["chain"]) == len(one["tree"]) == record.NEW_TOKENS for one in found["texts"])
    assert found["costs"]["1"]["plain"] > 0


def test_each_length_has_a_line_for_plain_decoding_and_each_tree(
    named: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--length", "40", "--length", "9", "--tree", "chain:2", "--max-new-tokens", "4"]
    monkeypatch.setattr(lengths, "VOCAB", 20)  # tokens that the tiny target knows
    monkeypatch.setattr(sys, "argv", ["lengths.py", *named, *short])
    lengths.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = [(length, tree) for length in (9, 40) for tree in ("plain", "chain:2")]
    assert [(line["prompt"], line["tree"]) for line in lines] == expected
    assert all(line["new"] == 4 and line["step_ms"] > 0 for line in lines)
