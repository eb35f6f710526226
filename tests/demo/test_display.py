"""What is seen: panels, lines, the table and the picture, on narrow and wide screens."""

import dataclasses
import io
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

from clover.demo.live import Lines, Panels, View, choose_view
from clover.demo.measure import Bench
from clover.demo.picture import draw, save_picture
from clover.demo.report import Difference, Report
from clover.demo.table import print_report
from clover.errors import UserError


def screen(width: int = 80, height: int = 24, terminal: bool = True, dumb: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=terminal,
        color_system=None,
        legacy_windows=False,
        _environ={"TERM": "dumb" if dumb else "xterm"},
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("console", "quiet", "view"),
    [
        (screen(), False, Panels),
        (screen(), True, View),
        (screen(terminal=False), False, Lines),
        (screen(dumb=True), False, Lines),
        (screen(width=50), False, Lines),
        (screen(height=10), False, Lines),
    ],
)
def test_the_view_fits_the_place(console: Console, quiet: bool, view: type[View]) -> None:
    assert type(choose_view(console, 3, quiet)) is view


@pytest.mark.parametrize(("width", "height"), [(60, 14), (80, 24), (120, 40)])
def test_panels_fit_the_screen(bench: Bench, width: int, height: int) -> None:
    console = screen(width, height)
    view = Panels(console, 3)
    done = bench.round(0, 0.0, 100)
    done.prompt = "def f(x):\n\treturn x\n" * 30
    view.rounds = [done, bench.round(0, 0.8, 4)]
    shown = console.render_lines(view.render(done), pad=False)
    text = ["".join(segment.text for segment in line) for line in shown]
    assert len(text) < height
    assert all(len(line) <= width for line in text)
    assert "prompt 1 of 3" in text[0]
    assert "plain decoding" in text[1]
    assert "Clover-2" in text[1]
    assert any("tokens/s" in line and "τ" in line for line in text)
    assert text[-1].startswith(" sampled (0.8)")


def test_panels_show_no_control_characters(bench: Bench) -> None:
    done = bench.round(0, 0.0, 4)
    done.decodings["plain"].pieces = ["a\x1b[2Jb", "\r\x07c"]
    console = screen()
    console.print(Panels(console, 1).render(done))
    assert not {"\x1b", "\r", "\x07"}.intersection(written(console))
    assert "a�[2Jb��c" in written(console)


def test_panels_leave_the_screen_clean(bench: Bench) -> None:
    console = screen()
    with Panels(console, 1) as view:
        view.say("warming up")
        view.finished(bench.round(0, 0.0, 4, view.show))
    assert "warming up" in written(console)
    assert written(console).endswith("\x1b[2K")
    assert written(console).count("\x1b[?25l") == written(console).count("\x1b[?25h") == 1


def test_lines_say_what_happened(bench: Bench) -> None:
    console = screen(terminal=False)
    with Lines(console, 3) as view:
        view.finished(bench.round(1, 0.0, 4, view.show))
    assert written(console).startswith("2/3 greedy ")
    assert written(console).endswith("identical\n")
    assert all(word in written(console) for word in ("transformers", "plain", "Clover-2", "×, τ "))


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_says_everything(report: Report, width: int) -> None:
    console = screen(width, terminal=False)
    print_report(console, report)
    text = written(console)
    assert all(len(line) <= width for line in text.splitlines())
    for part in ("81 66 54 43 32", "2.35×", "2.60×", "90 %", "104.2", "baseline", "3.12 · 8.20 ms / 9.80 ms"):
        assert part in text
    assert "identical output:    yes, 12 of 12 greedy texts and 12 of 12 sampled (0.8) texts" in text
    rows = [line for line in text.splitlines() if line.startswith(("transformers", "plain", "Clover-2"))]
    assert len(rows) == 5


def test_differences_are_explained(report: Report) -> None:
    console = screen(120, terminal=False)
    greedy = dataclasses.replace(report.methods[2], identical=False, identical_prompts=11)
    changed = dataclasses.replace(
        report, dtype="bfloat16", methods=[*report.methods[:2], greedy], differences=[Difference(4, 57, 0.031)],
        prompts=9, out_of_time=3,
    )  # fmt: skip
    print_report(console, changed)
    for part in (
        "11 of 12",
        "no, 11 of 12 greedy",
        "prompt 4 parts at new token 57",
        "0.031 apart",
        "near-ties",
    ):
        assert part in written(console)
    assert "3 of 12 prompts, to end within two minutes" in written(console)
    print_report(console, dataclasses.replace(changed, dtype="float32"))
    assert "it is a defect" in written(console)


@pytest.mark.parametrize("methods", [slice(None), slice(3)])
def test_the_picture_keeps_its_words_apart_and_inside(report: Report, methods: slice) -> None:
    figure = draw(dataclasses.replace(report, methods=report.methods[methods]))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    labels = [*figure.texts, *(text for axes in figure.axes for text in (*axes.texts, axes.title))]
    boxes = [label.get_window_extent(renderer) for label in labels if label.get_text()]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in boxes)
    outside = [label.get_window_extent(renderer) for label in figure.texts]
    titles = [axes.title.get_window_extent(renderer) for axes in figure.axes]
    assert not any(a.overlaps(b) for a in outside for b in boxes if a is not b and a.bounds != b.bounds)
    assert not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i])
    assert "2.35× the speed of plain decoding, identical output" in figure.texts[0].get_text()


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml")])
def test_the_picture_is_written_whole(report: Report, tmp_path: Path, name: str, start: bytes) -> None:
    save_picture(report, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_picture_that_cannot_be_written(report: Report, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*a\.png"):
        save_picture(report, tmp_path / "missing" / "a.png")
