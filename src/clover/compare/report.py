"""The report of a comparison: `report.md`, `report.html`, and plots as PNG, from its results alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clover.compare.findings import Findings
from clover.compare.plots import make_plots
from clover.compare.results import Record
from clover.compare.tables import make_tables
from clover.files import write_text, written
from clover.report.figure import save_picture
from clover.report.output import Report
from clover.report.words import duration


def write_report(records: Sequence[Record], folder: Path) -> Path:
    """Write tables and plots of `records` into `folder`; returns the HTML page.

    Raises:
        UserError: there are no records, or a file cannot be written.
    """
    findings = Findings(records)
    pictures = make_plots(findings)
    plots = folder / "plots"
    with written(plots):
        plots.mkdir(parents=True, exist_ok=True)
        for file in plots.glob("*.*"):
            file.unlink()  # of an earlier report
    for name, picture in pictures.items():
        save_picture(picture.draw, plots / f"{name}.png")
    last = records[-1].provenance
    facts = [
        ("target", last.target),
        ("where", f"{last.run.machine}, {last.run.dtype}"),
        (
            "results",
            f"{len(records)} in {duration(sum(r.seconds for r in records))}, the last on {last.run.date}",
        ),
        *([("what", last.note)] if last.note else []),
    ]
    report = Report(last.title or last.suite, None, facts, make_tables(findings), list(pictures.values()))
    write_text(folder / "report.md", report.markdown([f"plots/{name}.png" for name in pictures]))
    write_text(folder / "report.html", report.html())
    return folder / "report.html"
