"""Draw pictures in one style, and save them. A picture is saved completely or not at all."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from clover.errors import UserError
from clover.files import check_output_file, output_file

INK, FAINT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
MARKERS = "osD^vPX*"  # of lines
_FORMATS = (".png", ".pdf", ".svg")
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # because names may have any character
    "axes.labelcolor": FAINT,
    "axes.labelsize": 9.5,
    "axes.edgecolor": GRID,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "clover",  # so that the same results give the same file
    "svg.fonttype": "path",
}
Draw = Callable[[], Figure]


def check_picture(path: Path) -> None:
    """Raise UserError if the format of a picture is unknown, or the file cannot be written."""
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"the picture {path} must end in {', '.join(_FORMATS)}")
    check_output_file(path)


def save_picture(draw: Draw, path: Path) -> None:
    """Draw a figure and write it to `path`, in the format of its suffix; UserError if it cannot be written."""
    with rc_context(STYLE), output_file(path) as temporary:
        draw().savefig(temporary, dpi=150, format=path.suffix[1:].lower(), facecolor="white")


def new_figure(width: float, height: float, title: str, *foot: str) -> Figure:
    """Return an empty figure, of a size in inches, with a headline, and with lines of text below the panels."""
    lines = [line for text in foot for line in textwrap.wrap(text, int(width * 15))]
    figure = Figure(figsize=(width, height + 0.5 + 0.15 * len(lines)), layout="constrained")
    left: Any = {"x": 0.01, "ha": "left"}
    figure.suptitle(title, **left, fontsize=15, fontweight="bold")
    figure.supxlabel("\n".join(lines), **left, fontsize=8, color=FAINT)
    return figure
