from __future__ import annotations

import io

import pytest
from rich.console import Console

from clover.measure.report.table import Table
from clover.measure.speed_report import draw, speed_table, step_table
from tests.measure.hand import found
from tests.measure.report.pictures import drawn, overlaps, texts

SETTINGS = [(1, 0.0), (1, 0.8), (4, 0.0), (4, 0.8)]


def widest(table: Table, width: int) -> int:
    file = io.StringIO()
    Console(file=file, width=width).print(table.rich(width))
    assert "…" not in file.getvalue()
    return max(map(len, file.getvalue().splitlines()))


def test_a_row_per_method_and_setting() -> None:
    table = speed_table(found(SETTINGS, ["own tree", "chain:3"]))
    assert len(table.rows) == 16 and list(table.sections) == [4, 8, 12]
    cells = dict(zip(table.columns, table.rows[1], strict=True))
    assert cells["method"] == "own tree" and cells["speed-up"] == "4.00×"
    assert (cells["τ"], cells["ideal"], cells["draft"], cells["identical"]) == (
        "3.00",
        "2.50×",
        "15 %",
        "1 of 2",
    )
    assert list(table.strong) == [1, 2, 5, 6, 9, 10, 13, 14]


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(width: int) -> None:
    for table in (speed_table(found(SETTINGS, ["recall"])), step_table(found(SETTINGS, ["recall"]))):
        assert widest(table, width) <= width


def test_columns_that_say_nothing_are_left_out() -> None:
    assert "of ideal" not in speed_table(found([(1, 0.0)], [])).columns


@pytest.mark.parametrize("settings", [SETTINGS[:1], SETTINGS[:2], SETTINGS])
def test_pictures_keep_their_words_apart(settings: list[tuple[int, float]]) -> None:
    names = ["clover1", "clover2", "recall"]
    figure = drawn(
        lambda: draw(found(settings, names), "A headline", "a target, some prompts", "a machine " * 9)
    )
    assert overlaps(figure) == []
    shown = texts(figure)
    assert {"plain decoding", "Clover-1 (paper)", "Clover-2 (paper)", "Recall (ours)"} <= set(shown)
    assert sum(text.startswith("Speed-up") for text in shown) == len(settings)


def test_the_note_says_what_the_errors_are_over() -> None:
    note = speed_table(found([(1, 0.0), (4, 0.0)], [])).note
    assert "± standard error over batches, at batch 1 over prompts" in note
