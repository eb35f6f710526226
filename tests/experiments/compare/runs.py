"""Runs of the tiny suite, and what they left."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.compare.options import CompareOptions
from experiments.compare.run import run_compare


def compare(files: Path, output: Path, suite: str = "suite.toml", **options: Any) -> str:
    """Run the suite; returns what the console has shown."""
    console = Console(file=StringIO(), width=200)
    chosen = CompareOptions(suite=str(files / suite), output=output, device="cpu", dtype="float64", **options)
    try:
        run_compare(chosen, console)
    finally:
        shown = console.file.getvalue()  # type: ignore[attr-defined]
    return shown


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]


def trained(output: Path) -> list[dict[str, Any]]:
    return [row["result"] for row in lines(output) if "task" not in row["result"]]


def measured(output: Path) -> list[dict[str, Any]]:
    return [row["result"] for row in lines(output) if "task" in row["result"]]
