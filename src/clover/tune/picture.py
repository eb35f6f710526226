"""The tuning as one picture: speeds foretold against measured ones."""

from __future__ import annotations

import os
from typing import Any

from matplotlib.figure import Figure

from clover import pictures
from clover.evaluate.report import SYSTEM_LABELS
from clover.pictures import FAINT, GRID
from clover.tune.report import Tried, TuneReport, tree_label

_COLOURS = ("#2f9e60", "#3b6fb6", "#c9803a", "#8b5fb0", "#b6483b", "#4a9ba8", "#c2569b", "#6b7684")


def save_picture(report: TuneReport, path: str | os.PathLike[str]) -> None:
    """Draw the report into `path`, whole or not at all; the ending chooses the format.

    Raises:
        UserError: the file cannot be written.
    """
    pictures.save_picture(lambda: draw(report), path)


def draw(report: TuneReport) -> Figure:
    """The picture as a matplotlib figure, 12 by 6.4 inches."""
    figure = Figure(figsize=(12, 6.4))
    speeds = figure.subplots(gridspec_kw={"left": 0.06, "right": 0.97, "top": 0.76, "bottom": 0.17})
    figure.text(0.03, 0.925, _headline(report), fontsize=19, fontweight="bold")
    figure.text(0.03, 0.873, _subline(report), fontsize=10.5, color=FAINT)
    _draw_speeds(speeds, report)
    tuning = report.tuning
    versions = ", ".join(f"{name} {version}" for name, version in tuning.versions.items())
    place = f"{tuning.date}   {tuning.device}, {tuning.dtype} ({tuning.machine})   {versions}"
    figure.text(0.03, 0.03, place, fontsize=8.5, color=FAINT)
    return figure


def _headline(report: TuneReport) -> str:
    found = [f"{tried[0].speedup:.2f}× at batch {size}" for size, tried in list(report.tried.items())[:3]]
    return f"{SYSTEM_LABELS.get(report.system, report.system)}, tuned: " + ", ".join(found)


def _subline(report: TuneReport) -> str:
    return (
        f"draft {report.draft[-40:]}; {report.prompts} prompts, {report.new_tokens:,} new tokens, "
        f"temperature {report.temperature:g}"
    )


def _draw_speeds(axes: Any, report: TuneReport) -> None:
    """Speed-ups foretold against measured, and the choices' names; trees without a forecast are left out."""
    _finish(axes, "Speed-up, foretold and measured")
    shown = [(size, one) for size, tried in report.tried.items() for one in tried if one.predicted]
    ends = [1.0]
    for size, one in shown:
        colour = _COLOURS[list(report.tried).index(size) % len(_COLOURS)]
        first = one is report.tried[size][0]
        foretold = _foretold(one)
        label = f"batch {size}" if one is next(x for s, x in shown if s == size) else None
        axes.scatter(
            foretold, one.speedup, 110 if first else 45, color=colour, edgecolors="white", label=label
        )
        if first:
            name = tree_label(one.trial.tree)
            place: Any = {"xytext": (-9, -4), "textcoords": "offset points", "ha": "right"}
            axes.annotate(name, (foretold, one.speedup), **place, fontsize=9, color=colour)
        ends += [foretold, one.speedup]
    low, high = 0.9 * min(ends), 1.1 * max(ends)
    axes.plot([low, high], [low, high], color=FAINT, linewidth=1, linestyle=":")
    axes.axhline(1.0, color=GRID, linewidth=2)
    axes.set_xlabel("foretold from costs and ranks", color=FAINT)
    axes.set_ylabel("measured, over plain decoding", color=FAINT)
    if shown:
        axes.legend(frameon=False, loc="upper left", fontsize=9.5)


def _foretold(one: Tried) -> float:
    assert one.predicted is not None
    return one.predicted.speedup


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title)
    axes.tick_params(length=0)
    axes.grid(color=GRID)
