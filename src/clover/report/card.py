"""A card: what ran, on what, as a panel of facts on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

Facts = Iterable[tuple[str, str]]


def card(title: str, facts: Facts) -> Panel:
    """A panel of facts."""
    return Panel(
        grid(facts), title=Text(title, "bold"), title_align="left", box=box.ROUNDED, border_style="dim"
    )


def grid(facts: Facts) -> Table:
    """Facts below one another, each after its label; long ones go on below themselves."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in facts:
        table.add_row(label, Text(text))
    return table
