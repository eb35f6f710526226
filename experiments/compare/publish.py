"""The results of suites for a repository: numbers as one JSON file per suite, and a page with the tables of all."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clover.errors import UserError
from clover.files import check_output_file, read_text, write_json, write_text
from clover.measure.report.table import Table
from clover.validation import read_json, validated
from experiments.compare.findings import Ablation, Findings, Row
from experiments.compare.results import Record
from experiments.compare.tables import make_tables

_TABLE = ("title", "note", "columns", "rows", "words")
_HEADLINE = "# Results on one target"
_INTRODUCTION = (
    "Written by `python -m experiments.compare SUITE --publish DIR`; the last table of each suite has the "
    "command. Differences within two standard errors are not reported as findings."
)


@dataclass(frozen=True)
class _Published:
    """What the page shows of a file."""

    title: str
    note: str
    tables: list[Table]


def check_publication(name: str, folder: Path) -> None:
    """Say before the work what `publish_results` would say after it; UserError also for a README.md of others."""
    page, own = folder / "README.md", folder / f"{name}.json"
    for file in (own, page):
        check_output_file(file)
    for file in folder.glob("*.json"):
        if file != own:
            _read(file)
    if page.is_file() and (text := read_text(page).strip()) and not text.startswith(_HEADLINE):
        raise UserError(f"{page} was not written by experiments.compare; publish to another directory")


def publish_results(name: str, records: Sequence[Record], folder: Path) -> None:
    """Write `NAME.json` into `folder`, and `README.md` from all such files there.

    UserError if a file cannot be written, or a JSON file that is there is damaged.
    """
    findings, last = Findings(records), records[-1]
    rows = [(task, row) for task in findings.tasks for row in findings.rows_of([task])]
    rows += [("all", row) for row in findings.complete_rows]
    content = {
        "title": last.title,
        "note": last.note,
        "target": last.config["place"]["target"],
        "provenance": asdict(last.origin),
        "seconds": sum(record.seconds for record in records),
        "decoding": [_decoding(findings, row, task) for task, row in rows],
        "heads": [
            {
                "method": findings.label(series),
                "count": name,
                "heads": [asdict(one.estimate) for one in shares],
            }
            for series, kinds in findings.heads.items()
            for name, shares in kinds.items()
        ],
        "differences": [_difference(findings, one) for one in findings.ablations()],
        "tables": [{name: getattr(table, name) for name in _TABLE} for table in make_tables(findings)],
    }
    write_json(folder / f"{name}.json", content)
    write_text(folder / "README.md", _page(folder))


def _decoding(findings: Findings, row: Row, task: str) -> dict[str, Any]:
    method, prompts = row.series.method, sum(len(own.acceptances) for own in row.own)
    return {
        "task": task,
        "method": findings.label(row.series),
        "system": method.system,
        "tree": method.tree,
        "temperature": row.temperature,
        "batch_size": row.batch_size,
        "nodes": row.nodes,
        "prompts": prompts,
        "tokens_per_second": asdict(row.speed.estimate),
        "speedup": asdict(row.speedup.geometric),
        "tau": asdict(row.tau.estimate),
        "depths": [asdict(share.estimate) for share in row.depths],
    }


def _difference(findings: Findings, one: Ablation) -> dict[str, Any]:
    """What a draft gains over another: shares of top-5 accuracy by head, and tokens per step."""
    return {
        "method": findings.label(one.series),
        "against": findings.label(one.against),
        "top5": [asdict(value.estimate) for value in one.top5],
        "tau": None if one.tau is None else asdict(one.tau.estimate),
    }


def _read(file: Path) -> _Published | None:
    """None of a file of another command; UserError if it is damaged."""
    content = read_json(file)
    return validated(_Published, content, str(file)) if "tables" in content else None


def _page(folder: Path) -> str:
    """All tables of all suites in Markdown."""
    parts = [_HEADLINE, _INTRODUCTION]
    for file in sorted(folder.glob("*.json")):
        if (content := _read(file)) is not None:
            parts += [f"## {content.title}", f"[{file.name}]({file.name}). {content.note}"]
            for table in content.tables:
                parts += [f"### {table.title}", *([table.note] if table.note else []), _markdown(table)]
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    marks = ["---"] * table.words + ["---:"] * (len(table.columns) - table.words)
    lines = [table.columns, marks, *table.rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
