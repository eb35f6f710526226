"""Tables, plots and pages from results that were made by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from clover.compare.plan import Method
from clover.compare.plots import make_plots
from clover.compare.report import CAPTIONS, write_report
from clover.compare.results import Record
from clover.compare.summary import Findings
from clover.compare.tables import Table, make_tables
from clover.errors import UserError
from tests.compare.conftest import heads, record

pytestmark = pytest.mark.long

EVIL = '<script>alert("x")</script> $x^2$ | `a` & more'


def tables(records: list[Record]) -> dict[str, Table]:
    return {table.title: table for table in make_tables(Findings(records))}


def test_nothing_gives_no_report() -> None:
    with pytest.raises(UserError, match="no results yet"):
        Findings([])


def test_names_hold_what_tells_methods_apart(hand_made: list[Record]) -> None:
    label = Findings(hand_made).label
    assert label(Method("plain")) == "plain decoding"
    method = Method("clover2", "budget:4", "paper", "9 steps", 1e-3, 0)
    assert label(method) == "Clover-2, rate 0.001, budget:4"
    assert label(replace(method, system="half")) == "half, budget:4"


def test_averages_over_tasks(hand_made: list[Record]) -> None:
    records = [r for r in hand_made if r.kind == "measuring"]
    one = next(m for m in records[0].result.methods if m.method.tree == "budget:8")  # type: ignore[union-attr]
    other = replace(one, tau=5.75, speedups=(5.6,) * 3, acceptance_per_depth=(1.0,))
    changed = replace(records[-1].result, methods=(records[-1].result.methods[0], other))  # type: ignore[type-var]
    rows = Findings([*records[:-1], replace(records[-1], result=changed)]).rows()
    (row,) = (r for r in rows if r.method.tree == "budget:8" and (r.temperature, r.batch_size) == (1.0, 4))
    assert row.tau == pytest.approx((2.75 + 5.75) / 2)
    assert row.speedup == pytest.approx((1.4 * 5.6) ** 0.5)
    assert row.low == pytest.approx((0.9 * 1.4 * 5.6) ** 0.5)
    assert row.depths == pytest.approx((0.9, 0.5, 0.25))
    assert row.texts == 8 and row.tasks == ("code", "prose")


def test_heads_are_weighted_by_positions() -> None:
    one = heads("clover2", 1e-3, (0.8, 0.6))
    other = replace(heads("clover2", 1e-3, (0.2, 0.0), "prose"), positions=(300, 50))
    (row,) = Findings([record("a", "accuracy", one), record("b", "accuracy", other)]).head_rows()
    assert [head[3] for head in row.forced] == pytest.approx([(0.8 + 3 * 0.2) / 4, 0.3])


def test_an_ablation_is_compared_with_the_most_similar(hand_made: list[Record]) -> None:
    (found,) = Findings(hand_made).differences()
    assert found.method.system == "half" and found.against.learning_rate == 1e-3
    assert found.top5 == pytest.approx((-0.3, -0.3))
    assert found.tau == pytest.approx(1.9 - 2.5)


def test_an_ablation_is_not_compared_across_budgets(hand_made: list[Record]) -> None:
    def longer(one: Record) -> Record:
        result: Any = one.result
        if getattr(getattr(result, "method", None), "system", "half") == "half":
            return one
        return replace(one, result=replace(result, method=replace(result.method, budget="99 steps")))

    assert Findings([longer(one) for one in hand_made]).differences() == []


def test_every_table_is_drawn(hand_made: list[Record]) -> None:
    found = tables(hand_made)
    titles = " ".join(found)
    for part in (
        "Speed ", "Speed-up by task, temperature 1, batch 4", "τ by task, temperature 0, batch 1",
        "Tokens per second by batch size, temperature 0", "Where the time", "Acceptance per depth",
        "Accuracy of the heads", "Ablation", "Size of the tree", "Learning rate", "Training", "came from",
    ):  # fmt: skip
        assert part in titles
    for table in found.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_figures_of_the_tables(hand_made: list[Record]) -> None:
    found = tables(hand_made)
    speed = {row[:3]: row[3:] for row in found["Speed"].rows}
    assert speed["Clover-2, rate 0.001, budget:4", "0", "1"] == (
        "150.0", "1.50 (1.35 – 1.65)", "2.50", "3.00", "12.00", "yes",
    )  # fmt: skip
    assert speed["plain decoding", "0", "1"][-1] == "baseline"
    assert speed["prompt lookup, drawn:chain:2", "1", "4"][-1] == "rule B: need not be"
    assert found["Ablation"].rows == (("half", "Clover-2, rate 0.001", "-30.0", "-30.0", "-0.60"),)
    assert [row[2] for row in found["Size of the tree"].rows[:3]] == ["2", "4", "8"]
    rates = {row[1]: row[-1] for row in found["Learning rate"].rows}
    assert rates == {"0.001": "2.00", "0.003": "2.20"}


def test_a_difference_to_plain_decoding_is_shown(hand_made: list[Record]) -> None:
    measured = next(r for r in hand_made if r.kind == "measuring")
    methods = [replace(m, identical=3) for m in measured.result.methods]  # type: ignore[union-attr]
    changed = replace(measured, result=replace(measured.result, methods=tuple(methods)))  # type: ignore[type-var]
    assert tables([changed])["Speed"].rows[1][-1] == "3 of 4"


def test_every_plot_is_drawn(hand_made: list[Record]) -> None:
    assert set(make_plots(Findings(hand_made))) == set(CAPTIONS)


def test_plots_without_data_are_left_out(hand_made: list[Record]) -> None:
    assert make_plots(Findings(hand_made[:1])) == {}
    one_cell = [next(r for r in hand_made if r.kind == "measuring")]
    assert set(make_plots(Findings(one_cell))) == {"speed", "step", "depth", "tree-size"}


def test_files_of_the_report(tmp_path: Path, hand_made: list[Record]) -> None:
    page = write_report(hand_made, tmp_path)
    names = {f"{name}.{kind}" for name in CAPTIONS for kind in ("png", "svg")}
    assert {file.name for file in (tmp_path / "plots").iterdir()} == names
    for name in CAPTIONS:
        ElementTree.parse(tmp_path / "plots" / f"{name}.svg")
        assert f"](plots/{name}.png)" in (tmp_path / "report.md").read_text()
    first = page.read_text()
    write_report(hand_made, tmp_path)
    assert page.read_text() == first  # the same results give the same page
    write_report(hand_made[:2], tmp_path)
    assert {file.stem for file in (tmp_path / "plots").iterdir()} == {"training"}


def test_the_page_needs_no_other_file(tmp_path: Path, hand_made: list[Record]) -> None:
    page = write_report(hand_made, tmp_path).read_text()
    assert page.count("<svg") == len(CAPTIONS)
    assert not re.search(r'(src|href)="(?!#)|url\((?!#)|@import|<!DOCTYPE svg|<\?xml', page)


def test_what_comes_from_files_is_escaped(tmp_path: Path, hand_made: list[Record]) -> None:
    records = []
    for one in hand_made:
        result = one.result
        if one.kind == "measuring":
            methods = tuple(_renamed(m) for m in result.methods)  # type: ignore[union-attr]
            result = replace(result, methods=methods, task=EVIL)  # type: ignore[call-arg]
        elif one.kind in ("training", "accuracy"):
            result = _renamed(result)
        origin = replace(one.provenance, title=EVIL, note=EVIL, target=EVIL, command=EVIL, machine=EVIL)
        records.append(replace(one, result=result, label=EVIL, provenance=origin))
    page = write_report(records, tmp_path).read_text()
    parser = _Tags()
    parser.feed(page)
    assert "script" not in parser.tags and "&lt;script&gt;" in page
    markdown = (tmp_path / "report.md").read_text()
    assert "<script" not in markdown
    table = [line for line in markdown.splitlines() if line.startswith("| ") and "alert" in line]
    assert table and all(len(re.split(r"(?<!\\)\|", line)) == _columns(markdown, line) for line in table)
    for file in (tmp_path / "plots").glob("*.svg"):
        assert "script" not in {tag.tag.rsplit("}", 1)[-1] for tag in ElementTree.parse(file).iter()}


def _columns(markdown: str, line: str) -> int:
    """Parts that the ruler of the line's table has, with what is before and after it."""
    rulers = re.findall(r"^\|(?:---\|)+$", markdown[: markdown.index(line) + len(line)], flags=re.MULTILINE)
    below = re.findall(r"^\|(?:---\|)+$", markdown[markdown.index(line) :], flags=re.MULTILINE)
    heading = markdown[markdown.index(line) + len(line) + 1 :].startswith("|---")
    return (below[0] if heading else rulers[-1]).count("|") + 1


def _renamed(one: object) -> object:
    method = one.method  # type: ignore[attr-defined]
    return replace(one, method=replace(method, system=EVIL)) if method.system == "half" else one  # type: ignore[type-var]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
