"""The tables that `clover evaluate` prints; they fit into 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from clover.evaluate.acceptance import GroupAcceptance, SettingResult, Share
from clover.evaluate.accuracy import TOP, HeadAccuracy, shares
from clover.evaluate.report import EvaluationReport, setting_label

_SIDE_BY_SIDE = 3  # settings in one table of kinds and positions


@dataclass(frozen=True)
class _Block:
    """A table of heads: counts [D, K], shown as shares of [D], and what those are."""

    name: str
    counts: Tensor
    of: Tensor
    of_name: str = "positions"


def print_report(console: Console, report: EvaluationReport) -> None:
    """Print what was measured on what, and all tables."""
    console.print()
    console.print(_card(report))
    for title, note, table in _tables(report):
        console.print()
        console.print(Text(title, style="bold"))
        console.print(Text(note, style="dim"))
        console.print(table)
    console.print()


def _card(report: EvaluationReport) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    left_out = f" ({report.left_out} more do not fit into the context)" if report.left_out else ""
    grid.add_row("target", Text(f"{report.target}, {report.dtype} on {report.machine}"))
    grid.add_row("draft", Text(f"{report.draft} ({report.label})"))
    grid.add_row("prompts", Text(f"{report.prompts}{left_out}, {report.max_new_tokens} new tokens each"))
    grid.add_row("heads measured on", Text(report.texts))
    grid.add_row("time", Text(f"{report.seconds:.0f} s"))
    return grid


def _tables(report: EvaluationReport) -> Iterator[tuple[str, str, Table]]:
    heads = report.heads
    blocks = [_Block("the text's next token", heads.text, heads.positions)]
    same = torch.equal(heads.text, heads.target)
    if not same:
        blocks.append(_Block("the target's own first choice", heads.target, heads.positions))
    yield (
        "Accuracy of the heads, forced with the text, %",
        "how often the token is among a head's best 1, 2, 3, 5, 10"
        + (" (it is also the target's first choice)" if same else ""),
        _head_tables(heads, *blocks),
    )
    yield (
        "Accuracy of the heads, chained, %",
        "a head counts only where the first choices of all heads before it were right",
        _head_tables(
            heads,
            _Block("of all positions", heads.chained, heads.positions),
            _Block("of those that the head got to", heads.chained, heads.reached, "got to"),
        ),
    )
    yield (
        "Acceptance",
        "τ: tokens per step, the bonus token included; at each depth, of the steps that got there",
        _acceptance_table(report.settings),
    )
    for start in range(0, len(report.settings), _SIDE_BY_SIDE):
        some = report.settings[start : start + _SIDE_BY_SIDE]
        yield (
            "Where the draft is weak",
            "% of the new tokens that the draft gave, and their number; the target itself gave the others",
            _weakness_table(some),
        )


def _head_tables(heads: HeadAccuracy, *blocks: _Block) -> Table:
    """One table per block, side by side; the first also names the heads."""
    grid = Table.grid(padding=(0, 3, 0, 0))
    tables = []
    for place, block in enumerate(blocks):
        table = _table(Text(block.name, style="italic"))
        if place == 0:
            table.add_column("head", no_wrap=True)
        table.add_column(block.of_name, justify="right", no_wrap=True)
        for size in TOP:
            table.add_column(f"top {size}" if size == 1 else str(size), justify="right", min_width=4)
        for head in range(heads.heads):
            names = [] if place else [str(head + 1)]
            table.add_row(*names, _number(block.of[head]), *_percent(block, head))
        tables.append(table)
    grid.add_row(*tables)
    return grid


def _percent(block: _Block, head: int) -> list[str]:
    if not block.of[head]:
        return ["–"] * len(TOP)
    return [f"{100 * share:.1f}" for share in shares(block.counts, block.of)[head]]


def _acceptance_table(settings: Sequence[SettingResult]) -> Table:
    table = _table()
    table.add_column("tree", overflow="fold")
    table.add_column("T", justify="right")
    table.add_column("prompts of", overflow="fold")
    for name in ("number", "tokens", "τ"):
        table.add_column(name, justify="right")
    table.add_column("accepted at depth 1, 2, …, %")
    for setting in settings:
        groups = (GroupAcceptance("all", sum(g.prompts for g in setting.groups), setting.acceptance),)
        groups += setting.groups if len(setting.groups) > 1 else ()
        for place, group in enumerate(groups):
            name = ("", "") if place else (setting.tree, f"{setting.temperature:g}")
            table.add_row(*name, *_acceptance_cells(group), style="" if place else "bold")
        table.add_section()
    return table


def _acceptance_cells(group: GroupAcceptance) -> list[str]:
    acceptance = group.acceptance
    depths = " ".join(f"{100 * share:.0f}" for share in acceptance.acceptance_per_depth) or "–"
    return [group.group, str(group.prompts), _number(acceptance.emitted), f"{acceptance.tau:.2f}", depths]


def _weakness_table(settings: Sequence[SettingResult]) -> Table:
    table = _table()
    table.add_column("new tokens", vertical="bottom")
    for setting in settings:
        table.add_column(setting_label(setting), justify="right", overflow="fold")
    _add_shares(table, [setting.kinds for setting in settings])
    table.add_section()
    _add_shares(table, [setting.positions for setting in settings], "number ")
    return table


def _add_shares(table: Table, columns: Sequence[tuple[Share, ...]], prefix: str = "") -> None:
    for row, share in enumerate(max(columns, key=len)):
        cells = [_cell(column[row]) if row < len(column) else "–" for column in columns]
        if any(cell != "–" for cell in cells):
            table.add_row(prefix + share.label, *cells)


def _cell(share: Share) -> str:
    return f"{100 * share.share:.1f} of {share.emitted:,}" if share.emitted else "–"


def _number(value: int | Tensor) -> str:
    return f"{int(value):,}"


def _table(title: Text | None = None) -> Table:
    return Table(
        title=title,
        title_justify="right",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1),
    )
