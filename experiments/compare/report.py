"""The results of a suite for readers: all tables as one Markdown page, and the numbers as a JSON file."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clover.files import write_json, write_text
from clover.measure.report.table import Table
from clover.measure.report.words import duration
from experiments.compare.findings import Ablation, Findings, Row
from experiments.compare.results import Record
from experiments.compare.tables import make_tables

_TABLE = ("title", "note", "columns", "rows", "words")
_MARKS = str.maketrans({mark: "\\" + mark for mark in "\\|<>`*_[]#"})  # of Markdown and of HTML in it


def write_report(records: Sequence[Record], page: Path) -> None:
    """Write all tables of the results into a Markdown file; UserError if it cannot be written."""
    last, took = records[-1], duration(sum(record.seconds for record in records))
    facts = f"{len(records)} results in {took}. Differences within two standard errors are not reported as findings."
    parts = [f"# {_plain(last.title)}", *([_plain(last.note)] if last.note else []), facts]
    for table in make_tables(Findings(records)):
        parts += [f"## {table.title}", *([table.note] if table.note else []), _markdown(table)]
    write_text(page, "\n\n".join(parts) + "\n")


def publish_results(records: Sequence[Record], file: Path) -> None:
    """Write all numbers of the results and their tables into a JSON file; UserError if it cannot be written."""
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
    write_json(file, content)


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
    """Return what a draft gains over another: shares of top-5 accuracy by head, and tokens per step."""
    return {
        "method": findings.label(one.series),
        "against": findings.label(one.against),
        "top5": [asdict(value.estimate) for value in one.top5],
        "tau": None if one.tau is None else asdict(one.tau.estimate),
    }


def _markdown(table: Table) -> str:
    marks = ["---"] * table.words + ["---:"] * (len(table.columns) - table.words)
    lines = [list(map(_plain, table.columns)), marks, *(list(map(_plain, row)) for row in table.rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Return words of a suite so that Markdown shows them as they are, in one line."""
    return " ".join(text.split()).translate(_MARKS)
