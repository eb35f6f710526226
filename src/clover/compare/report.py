"""The report of a comparison: `report.md`, `report.html`, and plots as PNG and SVG, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib import rc_context

from clover.compare.plots import make_plots
from clover.compare.progress import clock
from clover.compare.results import Record
from clover.compare.style import STYLE, save_png, save_svg
from clover.compare.summary import Findings
from clover.compare.tables import Table, make_tables
from clover.compare.tables import escape as escape_markdown
from clover.files import write_text, written

CAPTIONS = {
    "speed": "Speed-up and τ",
    "batch-size": "Tokens per second by batch size",
    "step": "Where the time of a decoding step goes",
    "depth": "Acceptance per depth",
    "accuracy": "Accuracy of the heads",
    "training": "Training",
    "tree-size": "Size of the tree",
    "learning-rate": "Learning rate",
    "ablation": "Ablation",
}
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.7rem; margin-bottom: 0.3rem; }}
h2 {{ font-size: 1.15rem; margin: 2.2rem 0 0.4rem; }}
p {{ color: #52606d; max-width: 46rem; margin: 0.3rem 0 0.8rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.87rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: 0.25rem 0.7rem; border-bottom: 1px solid #e4e7eb; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
th {{ color: #52606d; font-weight: 600; }}
figure {{ margin: 1rem 0; }}
figure svg {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def write_report(records: Sequence[Record], folder: Path) -> Path:
    """Write tables and plots of `records` into `folder`; returns the HTML page.

    Raises:
        UserError: there are no records, or a file cannot be written.
    """
    findings = Findings(records)
    tables = make_tables(findings)
    plots = folder / "plots"
    with written(plots):
        plots.mkdir(parents=True, exist_ok=True)
    inline = {}
    with rc_context(STYLE):
        for name, figure in make_plots(findings).items():
            save_png(figure, plots / f"{name}.png")
            inline[name] = save_svg(figure, plots / f"{name}.svg")
    for file in plots.glob("*.*"):
        if file.stem in CAPTIONS and file.stem not in inline:
            file.unlink()  # of an earlier report: these results have nothing for it
    write_text(folder / "report.md", markdown(findings, tables, list(inline)))
    page = folder / "report.html"
    write_text(page, html(findings, tables, inline))
    return page


def markdown(findings: Findings, tables: Sequence[Table], plots: Sequence[str]) -> str:
    """The report as Markdown, with links to the PNG files."""
    p = findings.provenance
    head = [
        f"# {escape_markdown(p.title or p.suite)}",
        "",
        *([escape_markdown(p.note), ""] if p.note else []),
    ]
    head += [escape_markdown(_summary(findings)), ""]
    pictures = [f"![{CAPTIONS[name]}](plots/{name}.png)\n" for name in plots]
    return "\n".join([*head, *pictures, *(table.markdown() for table in tables)])


def html(findings: Findings, tables: Sequence[Table], plots: Mapping[str, str]) -> str:
    """The report as one HTML page that needs no other file. What comes from the results is escaped.

    Args:
        findings: what was measured.
        tables: in their order.
        plots: SVG elements by name.
    """
    p = findings.provenance
    title = escape(p.title or p.suite)
    parts = [f"<h1>{title}</h1>", f"<p>{escape(p.note)}</p>" if p.note else ""]
    parts.append(f"<p>{escape(_summary(findings))}</p>")
    parts += [
        f'<h2>{CAPTIONS[name]}</h2>\n<figure role="img" aria-label="{CAPTIONS[name]}">{svg}</figure>'
        for name, svg in plots.items()
    ]
    parts += [_html_table(table) for table in tables]
    return _PAGE.format(title=title, body="\n".join(filter(None, parts)))


def _summary(findings: Findings) -> str:
    p = findings.provenance
    return (
        f"Target {p.target}, {p.machine}, {p.dtype}; {len(findings.provenances)} results in "
        f"{clock(findings.seconds)}, the last on {p.date}."
    )


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = ["<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in table.rows]
    note = f"<p>{escape(table.note)}</p>\n" if table.note else ""
    body = "\n".join(rows)
    return (
        f"<h2>{escape(table.title)}</h2>\n{note}"
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
    )
