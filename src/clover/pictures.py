"""How pictures look, and how they are saved: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from clover.errors import UserError
from clover.files import check_output_file, written

_FORMATS = (".png", ".pdf", ".svg")
INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
GREEN = "#2f9e60"
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "xtick.color": INK,
    "ytick.color": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
}


def check_picture(path: Path) -> None:
    """Raise a UserError if no picture of this format can be drawn, or not there."""
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"the picture {path} must end in {', '.join(_FORMATS)}")
    check_output_file(path)


def save_picture(
    draw: Callable[[], Figure], path: str | os.PathLike[str], style: Any = STYLE, **options: Any
) -> None:
    """Draw a figure in a style and write it to `path`; the ending chooses the format.

    Args:
        options: for matplotlib's `savefig`.

    Raises:
        UserError: the file cannot be written.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.partial")
    with rc_context(style), written(final):
        try:
            figure = draw()
            figure.savefig(
                temporary, **{"dpi": 160, "format": final.suffix[1:].lower(), "facecolor": "white"} | options
            )
            os.replace(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)
