"""The picture of a benchmark. Its tables are in test_tables.py."""

from __future__ import annotations

import pytest
from matplotlib.text import Text

from clover.measure.speed_report import draw, speed_table
from tests.measure.hand import found

SETTINGS = [(1, 0.0), (1, 0.8), (4, 0.0), (4, 0.8)]


def test_columns_that_say_nothing_are_left_out() -> None:
    assert "of ideal" not in speed_table(found([(1, 0.0)], [])).columns


@pytest.mark.parametrize("settings", [SETTINGS[:1], SETTINGS[:2], SETTINGS])
def test_a_panel_per_setting(settings: list[tuple[int, float]]) -> None:
    figure = draw(found(settings, ["clover1", "clover2", "recall"]), "A headline", "a target", "a machine")
    shown = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    assert {"plain decoding", "Clover-1 (paper)", "Clover-2 (paper)", "Recall (ours)"} <= set(shown)
    assert sum(text.startswith("Speed-up") for text in shown) == len(settings)
