"""The page and the JSON file of results made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from experiments.compare.plan import MethodKey
from experiments.compare.report import publish_results, write_report
from tests.experiments.compare.hand import measured

RECORD = measured("code", {MethodKey("clover2", "chain:1"): [(4, 2, 1.0, 2.0), (4, 3, 1.0, 2.0)]})


def test_the_page_has_the_tables(tmp_path: Path) -> None:
    write_report([RECORD], tmp_path / "report.md")
    page = (tmp_path / "report.md").read_text()
    assert page.count("\n## ") == 3 and "| Clover-2 (paper) | 0 | 1 | 1 | 4.0 ± 0.0 |" in page


def test_words_of_a_suite_are_no_marks_of_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> | `a`\n# b"
    write_report([replace(RECORD, title=evil, note=evil)], tmp_path / "report.md")
    first, _, second, *_ = (tmp_path / "report.md").read_text().splitlines()
    assert "\\<script\\>" in first and "\\| \\`a\\` \\# b" in second


def test_the_json_file_has_the_numbers_and_the_tables(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text("{")
    publish_results([RECORD], tmp_path / "own.json")
    content = json.loads((tmp_path / "own.json").read_text())
    assert [one["system"] for one in content["decoding"]] == ["plain", "clover2"] * 2
    assert content["tables"][0]["title"] == "Speed"
