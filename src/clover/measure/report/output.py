"""Write a report: to a terminal, as JSON, as a picture, and as one HTML page."""

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from clover.files import check_output_file, write_text
from clover.measure.report.figure import Draw, check_picture, save_picture
from clover.measure.report.provenance import Provenance
from clover.measure.report.table import Table, facts_grid

_STDOUT = Path("-")


@dataclass(frozen=True)
class Report:
    """The result of a command.

    Attributes:
        title: a headline in words.
        provenance: the origin of the result; None if results of several origins are joined.
        facts: the lines of the card: the measurement, and its models and data.
        tables: the tables, in order.
        data: for JSON; a dict becomes one object, a list one object per line. Each gets the provenance.
        notes: lines below the tables, such as the meaning of columns.
        draw: the function that draws the picture, if there is one.
    """

    title: str
    provenance: Provenance | None
    facts: Sequence[tuple[str, str]]
    tables: Sequence[Table]
    data: dict[str, Any] | list[dict[str, Any]] = field(default_factory=dict)
    notes: Sequence[tuple[str, str]] = ()
    draw: Draw | None = None

    @property
    def all_facts(self) -> list[tuple[str, str]]:
        """Return the facts of the run, then those of its provenance."""
        return [*self.facts, *(self.provenance.facts if self.provenance else ())]

    def json(self) -> str:
        """Return one JSON object, or one per line; ValueError for a number that JSON does not have, such as NaN."""
        origin = {"provenance": asdict(self.provenance)} if self.provenance else {}
        objects = [self.data] if isinstance(self.data, dict) else self.data
        lines = (json.dumps(one | origin, ensure_ascii=False, allow_nan=False) for one in objects)
        return "".join(line + "\n" for line in lines)

    def html(self) -> str:
        """Return the report as a single page that needs no other file; values are escaped."""
        source = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
        return page.render(report=self)

    def print(self, console: Console) -> None:
        """Print card, tables and notes."""
        card = facts_grid(self.all_facts)
        title = Text(self.title, "bold")
        parts: list[Any] = [Panel(card, title=title, title_align="left", box=box.ROUNDED, border_style="dim")]
        for table in self.tables:
            parts += ["", Text(table.title, "bold")] if table.title else [""]
            parts += [Text(table.note, "dim")] if table.note else []
            parts.append(table.rich(console.width))
        parts += ["", facts_grid(self.notes)] if self.notes else []
        for part in ("", *parts, ""):
            console.print(part)


def standard_output() -> Console:
    """Return a console on standard output that writes "?" for characters outside its encoding, such as τ."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console()


def check_outputs(json: Path | None = None, picture: Path | None = None) -> None:
    """Raise, before the work, the UserError that `publish` would raise afterwards."""
    if json is not None and json != _STDOUT:
        check_output_file(json)
    if picture is not None:
        check_picture(picture)


def publish(
    report: Report,
    console: Console | None = None,
    json: Path | None = None,
    picture: Path | None = None,
    lines: Sequence[str] = (),
) -> None:
    """Write the JSON file and the picture, each completely or not at all, and print a report.

    Files are written first, because a reader of the report may close the pipe. `lines` are printed below the report.
    For the JSON file "-", standard output ends with the JSON. UserError if a file cannot be written.
    """
    if json is not None and json != _STDOUT:
        write_text(json, report.json())
    if picture is not None:
        assert report.draw is not None
        save_picture(report.draw, picture)
    console = console or standard_output()
    report.print(console)
    files = [path for path in (json, picture) if path is not None and path != _STDOUT]
    for line in (*lines, *(f"wrote {path}" for path in files)):
        say(console, line)
    if json == _STDOUT:
        say(console, report.json().rstrip("\n"))


def say(console: Console, line: str) -> None:
    """Print a line unchanged: without markup, colors or line breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
