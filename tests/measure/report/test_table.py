from __future__ import annotations

import io

import pytest
from rich.console import Console

from clover.measure.report.table import Table

TABLE = Table(
    "Speed",
    ("method", "tokens/s", "rounds"),
    [("plain [a]", "70.0", "1.00–1.00"), ("a|b", "140.0", "1.90–2.10")],
    note="in turn",
    strong={1},
    sections={1},
    optional=("rounds",),
)


def shown(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(TABLE.rich(width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_terminal() -> None:
    lines = shown(80)
    assert lines[0].split() == ["method", "tokens/s", "rounds"]
    assert lines[2].split() == ["plain", "[a]", "70.0", "1.00–1.00"]
    assert lines[-1].split() == ["a|b", "140.0", "1.90–2.10"]


def test_a_narrow_terminal_has_no_optional_columns() -> None:
    lines = shown(24)
    assert lines[0].split() == ["method", "tokens/s"]
    assert max(map(len, lines)) <= 24


def test_rows_have_a_cell_per_column() -> None:
    with pytest.raises(AssertionError):
        Table("", ("a", "b"), [("1",)])
