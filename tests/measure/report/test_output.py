from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from rich.console import Console

from clover.errors import UserError
from clover.measure.report.figure import new_figure
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.provenance import Provenance
from clover.measure.report.table import Table


def report(data: object = None) -> Report:
    origin = Provenance.here("clover work", torch.device("cpu"), torch.float32)
    table = Table("Speed <of> all", ("method", "tokens/s"), [("plain [a]", "70"), ("<b>", "140")], strong={1})
    values = {"tau": 2.5} if data is None else data
    return Report(
        "Work & play", origin, [("target", "embedded")], [table], values, [("τ", "tokens")],  # type: ignore[arg-type]
        lambda: new_figure(3, 2, "Fast"),
    )  # fmt: skip


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def printed(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_everything_is_written(tmp_path: Path) -> None:
    paths = {"json": tmp_path / "a.json", "picture": tmp_path / "a.png"}
    check_outputs(**paths)
    shown = console()
    publish(report(), shown, **paths)
    assert [line for line in printed(shown).splitlines() if line.startswith("wrote ")] == [
        f"wrote {path}" for path in paths.values()
    ]
    found = json.loads(paths["json"].read_text())
    assert "plain [a]" in printed(shown)  # no markup
    assert found["tau"] == 2.5 and found["provenance"]["command"] == "clover work"


def test_files_are_there_even_if_nobody_reads_the_report(tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with pytest.raises(SystemExit):  # as rich ends a process whose reader has gone
        publish(report(), Console(file=Closed()), json=tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["tau"] == 2.5


def test_json_lines_and_standard_output() -> None:
    shown = console()
    publish(report([{"a": 1}, {"a": 2}]), shown, json=Path("-"), lines=["wrote a.html"])
    told, *last = printed(shown).splitlines()[-3:]
    lines = [json.loads(line) for line in last]
    assert [line["a"] for line in lines] == [1, 2] and all("provenance" in line for line in lines)
    assert told == "wrote a.html"


def test_page_stands_alone_and_escapes_what_it_shows() -> None:
    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.links: list[str] = []
            self.text = ""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.links += [
                str(value) for name, value in attrs if name in ("src", "href") and str(value)[0] != "#"
            ]

        def handle_data(self, data: str) -> None:
            self.text += data

    page = Tags()
    page.feed(report().html())
    assert page.links == [] and "b" not in page.tags and "of" not in page.tags
    assert page.tags.count("tr") == 3
    assert "Work & play" in page.text and "<b>" in page.text


def test_bad_outputs_are_refused_before_the_work(tmp_path: Path) -> None:
    for bad in ({"picture": tmp_path / "a.gif"}, {"json": tmp_path}):
        with pytest.raises(UserError):
            check_outputs(**bad)
    check_outputs(json=Path("-"))
