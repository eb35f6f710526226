"""The tables that `clover tune` prints; they fit into 100 columns."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clover.drafting.tuning import PLAIN
from clover.evaluate.report import SYSTEM_LABELS
from clover.tune.report import Tried, TuneReport, tree_label


def print_report(console: Console, report: TuneReport) -> None:
    """Print what was measured on what, and per batch size all candidates, the choice first."""
    console.print()
    console.print(_card(report))
    console.print()
    console.print(Text("The fastest per batch size, and what else was tried", style="bold"))
    note = (
        "τ: tokens per step and text; foretold: from costs and ranks; ideal: share of it, % (docs/tuning.md)"
    )
    console.print(Text(note, style="dim"))
    console.print(_choices(report))
    console.print()


def _card(report: TuneReport) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    tuning = report.tuning
    grid.add_row("machine", Text(f"{tuning.machine}, {tuning.device}, {tuning.dtype}"))
    grid.add_row("draft", Text(f"{report.draft} ({SYSTEM_LABELS.get(report.system, report.system)})"))
    written = (
        f"{report.prompts} prompts, {report.new_tokens:,} new tokens, temperature {report.temperature:g}"
    )
    grid.add_row("acceptance on", Text(written))
    grid.add_row("time", f"{report.seconds:.0f} s")
    return grid


def _choices(report: TuneReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column("batch", justify="right")
    table.add_column("tree", overflow="fold", min_width=16)
    for name in ("τ", "foretold", "tokens/s", "speed-up", "foretold", "ideal"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for size, tried in report.tried.items():
        for place, one in enumerate(tried):
            table.add_row("" if place else str(size), *_cells(one), style="" if place else "bold")
        table.add_section()
    return table


def _cells(one: Tried) -> tuple[str, ...]:
    trial, predicted = one.trial, one.predicted
    return (
        tree_label(trial.tree),
        f"{trial.tau:.2f}",
        "" if predicted is None else f"{predicted.candidate.tau:.2f}",
        f"{trial.speed:.1f}",
        f"{one.speedup:.2f}",
        "" if predicted is None else f"{predicted.speedup:.2f}",
        "" if trial.tree == PLAIN else f"{100 * one.ideal_share:.0f}",
    )
