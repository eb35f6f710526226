"""Draw pictures in one style, and save them: whole or not at all."""

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from clover.errors import UserError
from clover.files import check_output_file, output_file
from clover.measure.report.words import shortened

INK, FAINT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
_FORMATS = (".png", ".pdf", ".svg")
_LINES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_MARKERS = "osD^vPX*"
_LEGEND_CHARACTERS, _LEGEND_ROW_INCHES = 14, 0.2  # per inch; of a line
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # names may hold any character
    "axes.labelcolor": FAINT,
    "axes.labelsize": 9.5,
    "axes.edgecolor": GRID,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "svg.hashsalt": "clover",  # the same results give the same file
    "svg.fonttype": "path",
}
Draw = Callable[[], Figure]


@dataclass(frozen=True)
class Picture:
    """A figure of a report: its caption, and the function that draws it."""

    caption: str
    draw: Draw


def check_picture(path: Path) -> None:
    """Raise a UserError if no picture of this format can be drawn, or not there."""
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"the picture {path} must end in {', '.join(_FORMATS)}")
    check_output_file(path)


def save_picture(draw: Draw, path: Path) -> None:
    """Draw a figure and write it to `path`, whose ending chooses the format; a UserError where it cannot be written."""
    with rc_context(STYLE), output_file(path) as temporary:
        draw().savefig(temporary, dpi=150, format=path.suffix[1:].lower(), facecolor="white")


def inline_svg(draw: Draw) -> str:
    """Return the figure as an SVG element that can stand inside an HTML page."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        draw().savefig(buffer, format="svg", facecolor="white", metadata=empty)
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def new_figure(width: float, height: float, title: str = "", subtitle: str = "", foot: str = "") -> Figure:
    """Return an empty figure (inches) with room for panels between the headlines and the foot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    top, bottom = 0.12, 0.08
    head = [(title, 16, INK)] if title else []
    head += [(line, 10, FAINT) for line in textwrap.wrap(subtitle, int(width * 14))]
    for line, size, colour in head:
        _write(figure, line, -top, size, colour)
        top += size / 72 + 0.09
    for line in reversed(textwrap.wrap(foot, int(width * 16))):
        _write(figure, line, bottom, 8, FAINT)
        bottom += 0.17
    _set_room(figure, top + 0.06, bottom)
    return figure


def _write(figure: Figure, text: str, inches: float, size: int, colour: str) -> None:
    """Write a line at the left, so far above the lower edge or, where that is negative, below the upper one."""
    edge, side = (0, "bottom") if inches > 0 else (1, "top")
    line = Annotation(
        text, (0, edge), (0.15 * 72, inches * 72), xycoords="figure fraction", textcoords="offset points",
        va=side, fontsize=size, color=colour, fontweight="bold" if size > 12 else "normal",
    )  # fmt: skip
    figure.add_artist(line)


def _set_room(figure: Figure, top: float, bottom: float) -> None:
    """Keep the panels so many inches away from the figure's upper and lower edge."""
    width, height = figure.get_size_inches()
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.1 / width, bottom / height, 1 - 0.25 / width, 1 - (top + bottom) / height))


def line_style(number: int) -> dict[str, Any]:
    """Return dashes and marker of the next line of one colour, as arguments of `plot`."""
    dashes, marker = _LINES[number % len(_LINES)], _MARKERS[number % len(_MARKERS)]
    return {"linestyle": dashes, "marker": marker, "linewidth": 1.6, "markersize": 4.5}


def shade(colour: str, step: int) -> tuple[float, float, float]:
    """Return the colour mixed with white; the higher `step`, the more."""
    share = min(0.25 * step, 0.8)
    red, green, blue = (value + (1 - value) * share for value in to_rgb(colour))
    return red, green, blue


def finish(axes: Any, title: str, axis: Literal["x", "y", "both"] = "y", room: float = 1.1) -> None:
    """Give panels their title and grid; `room` is for what is written at the ends of bars along `axis`."""
    axes.set_title(title)
    axes.grid(axis=axis, color=GRID)
    axes.tick_params(length=0)
    if axis == "x":
        axes.spines["left"].set_visible(False)
        axes.set_xlim(right=axes.get_xlim()[1] * room)
    if axis == "y":
        axes.set_ylim(top=axes.get_ylim()[1] * room)


def note(axes: Any, x: float, y: float, text: str) -> None:
    """Write to the right of the end of a horizontal bar."""
    axes.annotate(
        text, (x, y), (5, 0), textcoords="offset points", fontsize=9, linespacing=1.3, ha="left", va="center",
        color=INK,
    )  # fmt: skip


def named_bars(axes: Any, names: Sequence[str]) -> None:
    """Write names at the left of horizontal bars at 0, 1, …, the first at the top."""
    axes.set_yticks(range(len(names)), [shortened(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def legend_below(figure: Figure, axes: Any) -> None:
    """Draw one legend for all panels of a `new_figure`, above its foot; the figure grows by the legend's lines."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = max(1, min(6, len(labels), int(figure.get_figwidth() * _LEGEND_CHARACTERS) // (longest + 8)))
    extra = 0.1 + _LEGEND_ROW_INCHES * -(-len(labels) // columns)
    height = figure.get_figheight()
    engine: Any = figure.get_layout_engine()
    _, low, _, share = engine.get()["rect"]
    figure.set_figheight(height + extra)
    _set_room(figure, (1 - low - share) * height, low * height + extra)
    figure.legend(
        handles, [shortened(label, 70) for label in labels], loc="lower center", ncols=columns,
        bbox_to_anchor=(0.5, low * height / (height + extra)), borderaxespad=0.0, frameon=False,
        fontsize=9, handlelength=3.2,
    )  # fmt: skip
