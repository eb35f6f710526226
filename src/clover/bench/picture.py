"""The benchmark's figures as a picture: speed-up by method, or the cost of a step against the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from clover import pictures
from clover.bench.figures import Figures
from clover.bench.methods import PLAIN
from clover.bench.report import ContextReport, Origin, Report
from clover.bench.table import linear
from clover.pictures import FAINT, GREEN, GRID, INK

_GREY = "#9aa5b1"


def save_picture(report: Report, path: Path) -> None:
    """Draw a panel per batch size and temperature; the ending of `path` chooses the format.

    Raises:
        UserError: the file cannot be written.
    """
    pictures.save_picture(lambda: draw(report), path)


def save_context_picture(report: ContextReport, path: Path) -> None:
    """Draw the cost of a step against the context.

    Raises:
        UserError: the file cannot be written.
    """
    pictures.save_picture(lambda: draw_context(report), path)


def draw(report: Report) -> Figure:
    """Bars of the speed-up over plain decoding, with a dot per round."""
    settings = list(dict.fromkeys((one.batch_size, one.temperature) for one in report.figures))
    methods = list(dict.fromkeys(one.method for one in report.figures if one.method != PLAIN))
    figure = Figure(figsize=(3.2 * min(len(settings), 4) + 2.4, _height(len(settings), len(methods))))
    rows = -(-len(settings) // 4)
    panels = figure.subplots(rows, -(-len(settings) // rows), squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat:
        axes.set_visible(False)
    for axes, setting in zip(panels.flat, settings, strict=False):
        found = {one.method: one for one in report.figures if (one.batch_size, one.temperature) == setting}
        _draw_setting(axes, methods, found, setting)
    _words(figure, "Speed-up over plain decoding", report.origin)
    return figure


def draw_context(report: ContextReport) -> Figure:
    """Points as measured, and the line through them."""
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    for curve, colour in zip(report.curves, (_GREY, GREEN), strict=False):
        axes.plot(curve.contexts, [1e3 * s for s in curve.seconds], "o", color=colour, markersize=6)
        ends = (0, curve.contexts[-1])
        line = [1e3 * (curve.intercept + curve.slope * at) for at in ends]
        axes.plot(ends, line, color=colour, linewidth=1.5, label=f"{curve.method}: {linear(curve)}")
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("milliseconds per step")
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])  # room for the legend
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(color=GRID)
    axes.legend(frameon=False, loc="upper left", fontsize=9.5)
    _words(figure, "Cost of a decoding step against the context", report.origin)
    return figure


def _height(settings: int, methods: int) -> float:
    return -(-settings // 4) * (0.42 * methods + 1.0) + 1.4


def _draw_setting(
    axes: Any, methods: list[str], found: dict[str, Figures], setting: tuple[int, float]
) -> None:
    axes.set_visible(True)
    for place, method in enumerate(methods):
        one = found.get(method)
        if one is None:
            axes.text(0.03, place, "not able", color=FAINT, va="center", fontsize=9)
            continue
        axes.barh(place, one.speedup, 0.7, color=_GREY if one.ideal_share is None else GREEN)
        axes.plot(
            one.rounds_speedup, [place] * len(one.rounds_speedup), "o", color=INK, markersize=3, alpha=0.6
        )
        right = max(one.rounds_speedup)
        axes.annotate(
            f"{one.speedup:.2f}×",
            (right, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
        )
    axes.axvline(1.0, color=INK, linewidth=0.9, linestyle=":")
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.grid(axis="x", color=GRID)
    axes.tick_params(length=0)
    axes.set_title(f"batch {setting[0]}, temperature {setting[1]:g}", fontsize=10.5, pad=8)


def _words(figure: Figure, title: str, origin: Origin) -> None:
    """Headline and foot, with room for both."""
    figure.suptitle(title, x=0.02, ha="left", fontsize=14, fontweight="bold")
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    place = f"{origin.date[:10]}   target {Path(origin.target).name}   {origin.device}, {origin.dtype}"
    figure.text(0.02, 0.015, f"{place} ({origin.machine})\n{versions}", fontsize=8, color=FAINT, va="bottom")
    height = figure.get_size_inches()[1]
    figure.tight_layout(rect=(0.01, 0.5 / height, 0.99, 1 - 0.1 / height))
