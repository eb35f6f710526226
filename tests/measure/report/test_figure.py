from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from clover.errors import UserError
from clover.measure.report.figure import (
    STYLE,
    check_picture,
    finish,
    inline_svg,
    legend_below,
    line_style,
    named_bars,
    new_figure,
    note,
    save_picture,
    shade,
)
from clover.measure.systems import system_color


def draw() -> Figure:
    figure = new_figure(10, 4, "A headline", "what it says, " * 12, "2026-01-01   cpu, float32 " * 5)
    left, right = figure.subplots(1, 2)
    for place, name in enumerate(("plain", "recall")):
        left.barh(place, place + 1, 0.7, color=system_color(name))
        note(left, place + 1, place, f"{place + 1:.2f}×")
        right.plot(
            [1, 2, 4],
            [place, 3, 2 + place],
            label=name,
            color=shade(system_color(name), 1),
            **line_style(place),
        )
    named_bars(
        left, ["plain decoding", "a very long name that is cut because nobody reads names of this length"]
    )
    finish(left, "Speed-up", "x", room=1.3)
    finish(right, "Tokens per second")
    legend_below(figure, right)
    return figure


def test_formats(tmp_path: Path) -> None:
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        check_picture(tmp_path / name)
        save_picture(draw, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(UserError, match=r"must end in \.png"):
        check_picture(tmp_path / "a.gif")


def test_a_picture_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Figure:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        save_picture(fail, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_the_same_results_give_the_same_svg() -> None:
    with rc_context(STYLE):
        first = inline_svg(draw)
    assert first.startswith("<svg") and "<metadata>" not in first
    assert inline_svg(draw) == first
