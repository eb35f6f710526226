"""How plots look: colours of the systems, lines, legends, and the files they are saved in."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from clover import pictures
from clover.compare.plan import PLAIN, Method
from clover.compare.summary import Findings
from clover.files import write_text
from clover.pictures import FAINT, GRID, INK

PHASE_COLOURS = ("#2f9e60", "#2f6f9e", "#e0a526", "#b8c0c8")
_SYSTEM_COLOURS = {
    PLAIN: "#9aa5b1",
    "recall": "#2f9e60",
    "clover2": "#1b7f8c",
    "clover1": "#94c11f",
    "medusa": "#c0392b",
    "eagle": "#2f6f9e",
    "eagle3": "#6c4fa1",
    "hydra": "#e0a526",
    "lookup": "#5d6d7e",
}
_OTHER_COLOURS = ("#d6689c", "#17a2b8", "#8c564b", "#e377c2", "#bcbd22", "#ff7f0e", "#3b5b92", "#7f8c1f")
_LINES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_MARKERS = "osD^vPX*"
_LEGEND_CHARACTERS, _LEGEND_ROW_INCHES = 150, 0.18
STYLE: Any = {
    **pictures.STYLE,
    "font.size": 10,
    "axes.labelcolor": FAINT,
    "axes.labelsize": 9,
    "axes.titlesize": 11,
    "axes.titlepad": 10,
    "axes.spines.left": True,
    "ytick.color": INK,
    "svg.hashsalt": "clover",  # the same results give the same file
    "svg.fonttype": "path",
    "text.parse_math": False,  # names may hold any character
}


class Palette:
    """Gives every system a colour, and its methods lines that differ."""

    def __init__(self, findings: Findings):
        self.findings = findings
        self._colours: dict[str, str] = {}
        self._seen: dict[str, list[Method]] = {}

    def colour(self, method: Method) -> str:
        """The system's own colour; systems without one get the next that is free."""
        name = method.system
        if name in _SYSTEM_COLOURS:
            return _SYSTEM_COLOURS[name]
        number = len(self._colours) % len(_OTHER_COLOURS)
        return self._colours.setdefault(name, _OTHER_COLOURS[number])

    def line(self, method: Method) -> dict[str, Any]:
        """Arguments for `plot`."""
        key = replace(method, seed=None)
        seen = self._seen.setdefault(method.system, [])
        if key not in seen:
            seen.append(key)
        number = seen.index(key)
        return {
            "color": self.colour(method),
            "linestyle": _LINES[number % len(_LINES)],
            "linewidth": 1.6,
            "marker": _MARKERS[number % len(_MARKERS)],
            "markersize": 4.5,
            "label": self.findings.label(method),
        }


def shade(colour: str, step: int) -> tuple[float, float, float]:
    """The colour, mixed with white: the more, the higher `step`."""
    share = min(0.22 * step, 0.8)
    red, green, blue = (value + (1 - value) * share for value in to_rgb(colour))
    return red, green, blue


def named_bars(axes: Any, names: list[str]) -> None:
    """Put names beside horizontal bars, the first at the top."""
    axes.set_yticks(range(len(names)), [shortened(name) for name in names], fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def shortened(name: str, length: int = 52) -> str:
    """Each line of a name, cut where it is too long."""
    return "\n".join(line if len(line) <= length else line[: length - 1] + "…" for line in name.split("\n"))


def finish(axes: Any, title: str, axis: str = "y", from_zero: bool = True) -> None:
    """Title, grid lines and some room for what is written beside bars."""
    axes.set_title(title)
    axes.grid(axis=axis, color=GRID)
    axes.tick_params(length=0)
    if axis == "x":
        axes.spines["left"].set_visible(False)
        low, high = axes.get_xlim()
        axes.set_xlim(0 if from_zero else low, high * 1.1 if from_zero else high)


def legend_below(figure: Figure, axes: Any) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = max(1, min(6, len(labels), _LEGEND_CHARACTERS // (longest + 8)))
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_INCHES * (len(labels) // columns))
    figure.legend(
        handles,
        [shortened(label, 70) for label in labels],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        handlelength=3.2,
    )


def save_png(figure: Figure, path: Path) -> None:
    """Write a PNG, whole or not at all."""
    pictures.save_picture(lambda: figure, path, STYLE, dpi=130, metadata={"Software": None})


def save_svg(figure: Figure, path: Path) -> str:
    """Write an SVG; returns it as it can stand inside an HTML page, without prologue and metadata."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", facecolor="white", metadata=empty)
    text = buffer.getvalue()
    write_text(path, text)
    inner = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL)
