"""The plots of a comparison, each drawn only where the results have something for it; error bars are standard errors.

A system keeps its colour in all plots; what else tells its methods apart (loss, steps, tree) changes lines and shades.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from clover.compare.findings import HEAD_COUNTS, Findings, Row
from clover.compare.plan import Method
from clover.report import figure as art
from clover.report.statistics import Estimate

NAMES = ("speed", "batch-size", "accuracy", "tree-size")  # of all plots
_WIDTH, _BAR_INCHES, _MARGIN_INCHES = 10.0, 0.3, 1.1
_ROW_LIMIT = 40  # bars of a plot; with more of them none can be read
_ERROR: Any = {"ecolor": art.INK, "elinewidth": 0.9, "capsize": 2}
_SPEEDUP, _TAU = "Speed-up (geometric mean)", "τ, tokens per step"
Point = tuple[Method, float, Estimate]  # of a method's line: where, how much


@dataclass(frozen=True)
class _Panel:
    """Lines of one quantity; shares are drawn in percent, ratios on a log axis."""

    title: str
    against: str
    points: list[Point]
    percent: bool = False


def make_plots(findings: Findings) -> dict[str, art.Picture]:
    """All plots by the name of their file."""
    drafts = [row for row in findings.rows if row.nodes]
    smallest = [row for row in drafts if row.batch_size == findings.batch_sizes[0]]
    coldest = [row for row in drafts if row.temperature == findings.temperatures[0]]
    both = [row for row in smallest if row.temperature == findings.temperatures[0]]
    by_size, by_nodes = lambda row: (row.method, row.batch_size), lambda row: (_rule(row.method), row.nodes)
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
    name: str, rows: Sequence[Row], fewest: int, place: Callable[[Row], tuple[Method, float]]
) -> list[_Panel]:
    """Speed-up and τ of each method that has at least `fewest` places."""
    places = [(*place(row), row) for row in rows]
    methods = [method for method, _, _ in places]
    kept = sorted((p for p in places if methods.count(p[0]) >= fewest), key=lambda p: p[1])
    temperature = f", temperature {rows[0].temperature:g}" if rows else ""
    panels = [
        _Panel(_SPEEDUP, name + temperature, [(m, at, row.speedup.geometric) for m, at, row in kept]),
        _Panel(_TAU, name + temperature, [(m, at, row.tau.estimate) for m, at, row in kept]),
    ]
    return panels if kept else []


def _rule(method: Method) -> Method:
    """How a tree is grown, without its size.

    >>> _rule(Method("clover1", "budget:4")).tree, _rule(Method("clover2", "clover2")).tree
    ('budget', 'clover2')
    """
    rule, _, size = str(method.tree).rpartition(":")
    return replace(method, tree=rule) if size.isdigit() else method


def _by_head(findings: Findings) -> list[_Panel]:
    panels = [
        _Panel(
            f"Right, {kind}, %",
            "head",
            [
                (method, head, share.estimate.scaled(100))
                for method, kinds in findings.heads.items()
                for head, share in enumerate(kinds[kind], 1)
            ],
            percent=True,
        )
        for kind in HEAD_COUNTS
    ]
    return panels if findings.heads else []


def _draw_speed(findings: Findings, rows: Sequence[Row]) -> Figure:
    """Bars of speed-up and of τ per method, one per temperature."""
    methods, temperatures = (
        list(dict.fromkeys(row.method for row in rows))[:_ROW_LIMIT],
        findings.temperatures,
    )
    figure = art.new_figure(_WIDTH, _MARGIN_INCHES + _BAR_INCHES * max(5, len(methods) * len(temperatures)))
    left, right = figure.subplots(1, 2, sharey=True)
    size = 0.8 / len(temperatures)
    for row in (row for row in rows if row.method in methods):
        number = temperatures.index(row.temperature)
        at = methods.index(row.method) + (number - (len(temperatures) - 1) / 2) * size
        colour = art.shade(_colour(methods, row.method), number)
        for axes, found, unit in ((left, row.speedup.geometric, "×"), (right, row.tau.estimate, "")):
            error = found.error or 0.0
            axes.barh(at, found.value, size * 0.92, color=colour, xerr=error, error_kw=_ERROR)
            art.note(axes, found.value + error, at, f"{found.value:.2f}{unit}", "right")
    left.axvline(1.0, color=art.INK, linewidth=0.9, linestyle=":")
    art.named_bars(left, [findings.label(method) for method in methods])
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
    methods = list(dict.fromkeys(method for panel in panels for method, _, _ in panel.points))
    for axes, panel in zip(all_axes, panels, strict=True):
        for method in methods:
            _draw_line(axes, panel, method, methods, findings.label(method))
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


def _draw_line(axes: Any, panel: _Panel, method: Method, methods: Sequence[Method], label: str) -> None:
    points = [(place, found.value, found.error or 0) for own, place, found in panel.points if own == method]
    number = [other for other in methods if other.system == method.system].index(method)
    style = art.line_style(number) | {"color": _colour(methods, method), "label": label, "capsize": 2}
    places, values, errors = zip(*points, strict=True) if points else ((), (), ())
    axes.errorbar(places, values, errors, elinewidth=0.8, **style)


def _colour(methods: Sequence[Method], method: Method) -> str:
    """That of the system; of a system of one's own the next free one."""
    systems = list(dict.fromkeys(one.system for one in methods))
    return art.system_colour(method.system, systems.index(method.system))
