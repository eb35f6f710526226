"""Prompts of permissive licence: what is kept of a file, and what is counted."""

from __future__ import annotations

import json
from dataclasses import astuple
from datetime import datetime, timezone
from pathlib import Path

import pytest

from clover.errors import UserError
from experiments.recipes.prompts import accept_prompts, is_accepted


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(text: str, **more: str) -> dict:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    "licence",
    [
        "",
        "unknown",
        "CC-BY-NC-4.0",
        "CC-BY-SA-3.0",
        "MIT and CC-BY-NC-4.0",
        "GPL-3.0",
        "MIT OR GPL-2.0",
        "MIT, see X",
    ],
)
def test_other_licences_are_not_accepted(licence: str) -> None:
    assert not is_accepted(licence)


def test_only_permissive_rows_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    rows = [row(f"question {i}", licence="MIT", source="a") for i in range(3)]
    rows += [row("share", licence="CC-BY-SA-3.0", source="b"), row("none", source="c"), rows[0]]
    rows += [row("other spelling", license="Apache-2.0 repo", source="d")]
    rows += [{"conversations": [{"from": "gpt", "value": "nobody asked"}], "licence": "MIT"}]
    found = accept_prompts(write(tmp_path / "p.jsonl", rows), tmp_path / "kept.jsonl")
    assert set(map(astuple, found)) == {
        ("a", "MIT", 3, 0, True),
        ("b", "CC-BY-SA-3.0", 1, 0, False),
        ("c", "unknown", 1, 0, False),
        ("d", "Apache-2.0 repo", 1, 0, True),
        ("p.jsonl", "MIT", 0, 1, True),
    }
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert {one["messages"][0]["content"] for one in kept} == {
        *(f"question {i}" for i in range(3)),
        "other spelling",
    }


def test_rows_that_resemble_prompts_of_an_evaluation_are_left_out(tmp_path: Path) -> None:
    asked = "How many eggs, in all, do Janet's ducks lay?"
    turns = {"turns": ["Hello", asked]}
    apart = [
        write(tmp_path / "bench.jsonl", [turns]),
        write(tmp_path / "code.jsonl", [{"prompt": "def f(a): " * 3}]),
    ]
    kept = [row("How many eggs in all do ducks lay?", licence="MIT"), row("def f(a):", licence="MIT")]
    alike = [row(f"Tell me: {asked.upper()}", licence="MIT"), row("def f(a): " * 3, licence="MIT")]
    (found,) = accept_prompts(write(tmp_path / "p.jsonl", kept + alike), tmp_path / "kept.jsonl", apart)
    assert (found.rows, found.skipped) == (2, 2)
    assert sorted((tmp_path / "kept.jsonl").read_text().splitlines()) == sorted(map(json.dumps, kept))


def test_rows_of_parquet_may_hold_times(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    asked = {"role": "user", "content": "when?", "at": datetime(2026, 1, 2, tzinfo=timezone.utc)}
    rows = [{"messages": [asked], "licence": "MIT"}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    accept_prompts(tmp_path / "p.parquet", tmp_path / "kept.jsonl")
    (kept,) = map(json.loads, (tmp_path / "kept.jsonl").read_text().splitlines())
    (message,) = kept["messages"]
    assert (message["content"], message["at"][:10]) == ("when?", "2026-01-02")


def test_the_order_of_the_file_does_not_matter(tmp_path: Path) -> None:
    rows = [row(f"question {i}", licence="MIT") for i in range(20)]
    for name, order in (("a", rows), ("b", rows[::-1])):
        accept_prompts(write(tmp_path / f"{name}.jsonl", order), tmp_path / name)
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()


def test_a_file_of_which_nothing_may_be_used_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", [row("x", licence="CC-BY-NC-4.0")])
    with pytest.raises(UserError, match="no row that may be used: each needs a field licence"):
        accept_prompts(file, tmp_path / "kept.jsonl")
    assert not (tmp_path / "kept.jsonl").exists()
