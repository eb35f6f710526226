from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from clover.errors import UserError
from clover.measure.report.figure import check_picture, new_figure, save_picture


def draw() -> Figure:
    figure = new_figure(6, 3, "A headline", "what it says, " * 12, "2026-01-01   cpu, float32 " * 5)
    figure.subplots().plot([1, 2, 4], [0, 3, 2])
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


def test_the_same_results_give_the_same_svg(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_picture(draw, tmp_path / name)
    first, second = ((tmp_path / name).read_text() for name in ("a.svg", "b.svg"))
    assert [line for line in first.splitlines() if "<dc:date>" not in line] == [
        line for line in second.splitlines() if "<dc:date>" not in line
    ]
