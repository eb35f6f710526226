"""Describe a table of text, both for a terminal and for an HTML page; and print facts with their labels."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from rich import box
from rich import table as rich_table
from rich.cells import cell_len
from rich.text import Text
from typing_extensions import Self

_LEGIBLE = 22  # the smallest width of a column of words
Item = TypeVar("Item")


@dataclass(frozen=True)
class Table:
    """Rows of text below the names of the columns. "–" means that a value does not apply.

    Args:
        title: of the table; "" for none.
        columns: names, which may contain newlines.
        rows: each as long as `columns`.
        note: a sentence below the title.
        words: how many columns, from the first, are words; the others are numbers, aligned to the right.
        strong, sections: numbers of highlighted rows, and of rows with a line before them.
        optional: columns to leave out on a narrow terminal, the last of them first.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: int = 1
    strong: Sequence[int] = ()
    sections: Sequence[int] = ()
    optional: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[Item],
        columns: Mapping[str, Callable[[Item], str]],
        note: str = "",
        *,
        group: Callable[[Item], Hashable] = lambda item: None,
        once: Sequence[str] = (),
        strong: Callable[[Item], bool] | None = None,
        **more: Any,
    ) -> Self:
        """Return a table with a row for each item, and a line between groups of consecutive items.

        Args:
            columns: by name, the function that makes a cell from an item.
            group: the function whose value is the same for all items of a group.
            once: columns that only the first row of a group fills.
            strong: whether to highlight an item's row; by default the first of each group.
        """
        rows, firsts, stand_out = list[tuple[str, ...]](), list[int](), list[int]()
        for _, some in groupby(items, group):
            firsts.append(len(rows))
            for item in some:
                first = len(rows) == firsts[-1]
                if first if strong is None else strong(item):
                    stand_out.append(len(rows))
                cells = {
                    name: cell(item) if first or name not in once else "" for name, cell in columns.items()
                }
                rows.append(tuple(cells.values()))
        return cls(title, list(columns), rows, note, strong=stand_out, sections=firsts[1:], **more)

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.title

    def rich(self, width: int) -> rich_table.Table:
        """Return the table for a terminal with `width` characters per line."""
        kept = self._kept(width)
        shown = rich_table.Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True
        )
        for at in kept:
            words = at < self.words
            shown.add_column(
                self.columns[at], justify="left" if words else "right", vertical="bottom",
                no_wrap=not words, overflow="fold" if words else "ellipsis",
                min_width=min(self._widths[at], _LEGIBLE) if words else None,
            )  # fmt: skip
        for number, row in enumerate(self.rows):
            if number in self.sections:
                shown.add_section()
            cells = [Text(row[at]) for at in kept]
            shown.add_row(*cells, style="bold green" if number in self.strong else "")
        return shown

    def _kept(self, width: int) -> list[int]:
        kept, optional = list(range(len(self.columns))), list(self.optional)
        while optional and sum(self._widths[at] + 2 for at in kept) > width:
            kept.remove(list(self.columns).index(optional.pop()))
        return kept

    @property
    def _widths(self) -> list[int]:
        parts = zip(self.columns, *self.rows, strict=True)
        return [max(cell_len(line) for cell in part for line in cell.split("\n")) for part in parts]


def facts_grid(facts: Iterable[tuple[str, str]]) -> rich_table.Table:
    """Return a grid of facts, one per row, each after its label; long facts are wrapped."""
    grid = rich_table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts:
        grid.add_row(label, Text(text))
    return grid
