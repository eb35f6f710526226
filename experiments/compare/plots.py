"""The plots of a comparison, each drawn only where the results have something for it; error bars are standard errors.

A system keeps its colour in all plots; what else tells its methods apart (loss, steps, tree) changes lines and shades.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from clover.measure.report import figure as art
from clover.measure.report.statistics import Estimate
from clover.measure.systems import system_color
from experiments.compare.findings import HEAD_COUNTS, Findings, Row, Series

NAMES = ("speed", "batch-size", "accuracy", "tree-size")  # of all plots
_WIDTH, _BAR_INCHES, _MARGIN_INCHES = 10.0, 0.3, 1.1
_ROW_LIMIT = 40  # bars of a plot; with more of them none can be read
_ERROR: Any = {"ecolor": art.INK, "elinewidth": 0.9, "capsize": 2}
_SPEEDUP, _TAU = "Speed-up (geometric mean)", "τ, tokens per step"
Point = tuple[Series, float, Estimate]  # of a line: where, how much


@dataclass(frozen=True)
class _Panel:
    """Lines of one quantity; shares are drawn in percent, ratios on a log axis."""

    title: str
    against: str
    points: list[Point]
    percent: bool = False


def make_plots(findings: Findings) -> dict[str, art.Picture]:
    """All plots by the name of their file."""
    drafts = [row for row in findings.complete_rows if row.nodes]
    smallest = [row for row in drafts if row.batch_size == findings.batch_sizes[0]]
    coldest = [row for row in drafts if row.temperature == findings.temperatures[0]]
    both = [row for row in smallest if row.temperature == findings.temperatures[0]]
    by_size, by_nodes = (
        lambda row: (row.series, row.batch_size),
        lambda row: (_any_size(row.series), row.nodes),
    )
    speeds = _against("batch size", coldest, 2, by_size)[:1]  # τ is the same at all
    lines: dict[str, tuple[str, list[_Panel]]] = {
        "batch-size": ("Speed by batch size", speeds),
        "accuracy": ("Accuracy of the heads", _by_head(findings)),
        "tree-size": ("Size of the tree", _against("draft tokens per step at most", both, 3, by_nodes)),
    }
    speed = {"speed": art.Picture("Speed-up and τ", partial(_draw_speed, findings, smallest))}
    return (speed if smallest else {}) | {
        name: art.Picture(caption, partial(_draw_lines, findings, panels))
        for name, (caption, panels) in lines.items()
        if panels
    }


def _against(
    name: str, rows: Sequence[Row], fewest: int, place: Callable[[Row], tuple[Series, float]]
) -> list[_Panel]:
    """Speed-up and τ of each series that has at least `fewest` places."""
    places = [(*place(row), row) for row in rows]
    lines = [series for series, _, _ in places]
    kept = sorted((p for p in places if lines.count(p[0]) >= fewest), key=lambda p: p[1])
    temperature = f", temperature {rows[0].temperature:g}" if rows else ""
    panels = [
        _Panel(_SPEEDUP, name + temperature, [(s, at, row.speedup.geometric) for s, at, row in kept]),
        _Panel(_TAU, name + temperature, [(s, at, row.tau.estimate) for s, at, row in kept]),
    ]
    return panels if kept else []


def _any_size(series: Series) -> Series:
    """The series with how its tree is grown in place of the tree."""
    return replace(series, method=replace(series.method, tree=_rule(str(series.method.tree))))


def _rule(tree: str) -> str:
    """How a tree is grown, without its size.

    >>> _rule("budget:4"), _rule("clover2")
    ('budget', 'clover2')
    """
    rule, _, size = tree.rpartition(":")
    return rule if size.isdigit() else tree


def _by_head(findings: Findings) -> list[_Panel]:
    panels = [
        _Panel(
            f"Right, {kind}, %",
            "head",
            [
                (series, head, share.estimate.scaled(100))
                for series, kinds in findings.heads.items()
                for head, share in enumerate(kinds[kind], 1)
            ],
            percent=True,
        )
        for kind in HEAD_COUNTS
    ]
    return panels if findings.heads else []


def _draw_speed(findings: Findings, rows: Sequence[Row]) -> Figure:
    """Bars of speed-up and of τ per series, one per temperature."""
    all_series = list(dict.fromkeys(row.series for row in rows))[:_ROW_LIMIT]
    temperatures = findings.temperatures
    figure = art.new_figure(
        _WIDTH, _MARGIN_INCHES + _BAR_INCHES * max(5, len(all_series) * len(temperatures))
    )
    left, right = figure.subplots(1, 2, sharey=True)
    size = 0.8 / len(temperatures)
    for row in (row for row in rows if row.series in all_series):
        number = temperatures.index(row.temperature)
        at = all_series.index(row.series) + (number - (len(temperatures) - 1) / 2) * size
        colour = art.shade(_colour(findings, row.series), number)
        for axes, found, unit in ((left, row.speedup.geometric, "×"), (right, row.tau.estimate, "")):
            error = found.error or 0.0
            axes.barh(at, found.value, size * 0.92, color=colour, xerr=error, error_kw=_ERROR)
            art.note(axes, found.value + error, at, f"{found.value:.2f}{unit}")
    left.axvline(1.0, color=art.INK, linewidth=0.9, linestyle=":")
    art.named_bars(left, [findings.label(series) for series in all_series])
    shades = ", ".join(f"temperature {temperature:g}" for temperature in temperatures)
    left.set_xlabel(f"against plain decoding, batch {rows[0].batch_size}; from the top: {shades}", loc="left")
    art.finish(left, _SPEEDUP, "x", 1.12)
    art.finish(right, _TAU, "x", 1.12)
    right.tick_params(axis="y", labelleft=False)
    return figure


def _draw_lines(findings: Findings, panels: Sequence[_Panel]) -> Figure:
    """Panels side by side, with one legend."""
    figure = art.new_figure(_WIDTH, 4.8)
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=panels[0].percent)[0]
    all_series = list(dict.fromkeys(series for panel in panels for series, _, _ in panel.points))
    colours = [_colour(findings, series) for series in all_series]
    for axes, panel in zip(all_axes, panels, strict=True):
        for at, series in enumerate(all_series):
            style = art.line_style(colours[:at].count(colours[at])) | {"color": colours[at]}
            _draw_line(axes, panel, series, style | {"label": findings.label(series)})
        places = sorted({place for _, place, _ in panel.points})
        if not panel.percent:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_ylim(0, 100 if panel.percent else None)
        axes.set_xlabel(panel.against)
        art.finish(axes, panel.title, room=1.0)
    art.legend_below(figure, all_axes[0])
    return figure


def _draw_line(axes: Any, panel: _Panel, series: Series, style: dict[str, Any]) -> None:
    points = [(place, found.value, found.error or 0) for own, place, found in panel.points if own == series]
    places, values, errors = zip(*points, strict=True) if points else ((), (), ())
    axes.errorbar(places, values, errors, elinewidth=0.8, capsize=2, **style)


def _colour(findings: Findings, series: Series) -> str:
    """That of the system; of a system of one's own the next one."""
    return system_color(series.method.system, findings.systems.index(series.method.system))
