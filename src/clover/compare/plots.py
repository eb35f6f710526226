"""The plots of a comparison, each drawn only where the results have something for it; error bars are standard errors.

A system keeps its colour in all plots; what else tells its methods apart (loss, budget, tree) changes lines and shades.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from clover.compare.findings import Difference, Findings, Row
from clover.compare.plan import Method
from clover.report.figure import (
    BLUE,
    INK,
    Picture,
    finish,
    legend_below,
    line_style,
    named_bars,
    new_figure,
    note,
    shade,
    system_colour,
)
from clover.report.statistics import Estimate

_WIDTH, _BAR_INCHES, _MARGIN_INCHES = 10.0, 0.3, 1.1
_ROW_LIMIT = 40  # bars of a plot; with more of them none can be read
_ERROR: Any = {"ecolor": INK, "elinewidth": 0.9, "capsize": 2}
_SPEEDUP = "Speed-up (geometric mean)"
Points = Iterable[tuple[Method, float, Estimate]]


@dataclass(frozen=True)
class _Panel:
    """Lines of one quantity: a point per method and place; shares are drawn in percent, ratios on a log axis."""

    title: str
    against: str
    points: Points
    percent: bool = False


def make_plots(findings: Findings) -> dict[str, Picture]:
    """All plots by the name of their file."""
    smallest = [row for row in findings.rows if row.batch_size == min(findings.batch_sizes) and row.nodes]
    coldest = [row for row in smallest if row.temperature == min(findings.temperatures)]
    lines: dict[str, tuple[str, list[_Panel]]] = {
        "batch-size": ("Speed by batch size", _by_batch_size(findings)),
        "depth": ("Acceptance per depth", _by_depth(smallest, findings.temperatures)),
        "accuracy": ("Accuracy of the heads", _by_head(findings)),
        "tree-size": ("Size of the tree", _by_tree_size(coldest)),
        "learning-rate": ("Learning rate", _by_learning_rate(coldest)),
    }
    differences = findings.differences()[:_ROW_LIMIT]
    plots = {"speed": Picture("Speed-up and τ", partial(_draw_speed, findings, smallest))} if smallest else {}
    plots |= {
        name: Picture(caption, partial(_draw_lines, findings, panels))
        for name, (caption, panels) in lines.items()
        if panels
    }
    if differences:
        plots["ablation"] = Picture("Ablation", partial(_draw_ablation, findings, differences))
    return plots


def _by_batch_size(findings: Findings) -> list[_Panel]:
    panels = [
        _Panel(
            f"{_SPEEDUP}, temperature {temperature:g}",
            "batch size",
            [
                (row.method, row.batch_size, row.speedup.geometric)
                for row in findings.rows
                if row.temperature == temperature and row.nodes
            ],
        )
        for temperature in findings.temperatures
    ]
    return panels if len(findings.batch_sizes) > 1 else []


def _by_depth(rows: Sequence[Row], temperatures: Sequence[float]) -> list[_Panel]:
    panels = [
        _Panel(
            f"Accepted, %, temperature {temperature:g}",
            "depth in the token tree, of the steps that came there",
            [
                (row.method, depth, share.estimate)
                for row in rows
                if row.temperature == temperature
                for depth, share in enumerate(row.depths, 1)
            ],
            percent=True,
        )
        for temperature in temperatures
    ]
    return panels if rows else []


def _by_head(findings: Findings) -> list[_Panel]:
    kinds = (("top 1", "top1"), ("top 5", "top5"), ("top 1, chained", "chained"))
    panels = [
        _Panel(
            f"Right within the {title}, %",
            "head",
            [
                (row.method, head, share.estimate)
                for row in findings.heads
                for head, share in enumerate(getattr(row, name), 1)
            ],
            percent=True,
        )
        for title, name in kinds
    ]
    return panels if findings.heads else []


def _by_tree_size(rows: Sequence[Row]) -> list[_Panel]:
    """For drafts with three or more trees of one kind."""
    return _speed_panels(
        [(replace(row.method, tree=_rule(row.method)), row.nodes, row) for row in rows],
        "draft tokens per step at most",
        fewest=3,
    )


def _by_learning_rate(rows: Sequence[Row]) -> list[_Panel]:
    """For drafts with several rates, each with its first tree."""
    firsts = {replace(row.method, tree=None): row for row in reversed(rows) if row.method.learning_rate}
    places = [
        (replace(method, learning_rate=None), method.learning_rate or 0.0, row)
        for method, row in firsts.items()
    ]
    return _speed_panels(places[::-1], "peak learning rate", fewest=2)


def _speed_panels(places: Sequence[tuple[Method, float, Row]], against: str, fewest: int) -> list[_Panel]:
    """τ and speed-up of each method that has at least `fewest` places."""
    methods = [method for method, _, _ in places]
    kept = sorted((p for p in places if methods.count(p[0]) >= fewest), key=lambda p: p[1])
    panels = [
        _Panel("τ, tokens per step", against, [(m, at, row.tau.estimate) for m, at, row in kept]),
        _Panel(_SPEEDUP, against, [(m, at, row.speedup.geometric) for m, at, row in kept]),
    ]
    return panels if kept else []


def _draw_speed(findings: Findings, rows: Sequence[Row]) -> Figure:
    """Bars of speed-up and of τ per method, one per temperature."""
    methods, temperatures = (
        list(dict.fromkeys(row.method for row in rows))[:_ROW_LIMIT],
        findings.temperatures,
    )
    figure = new_figure(_WIDTH, _MARGIN_INCHES + _BAR_INCHES * max(5, len(methods) * len(temperatures)))
    left, right = figure.subplots(1, 2, sharey=True)
    size = 0.8 / len(temperatures)
    for row in (row for row in rows if row.method in methods):
        number = temperatures.index(row.temperature)
        at = methods.index(row.method) + (number - (len(temperatures) - 1) / 2) * size
        colour = shade(_colour(methods, row.method), number)
        for axes, found, unit in ((left, row.speedup.geometric, "×"), (right, row.tau.estimate, "")):
            error = found.error or 0.0
            axes.barh(at, found.value, size * 0.92, color=colour, xerr=error, error_kw=_ERROR)
            note(axes, found.value + error, at, f"{found.value:.2f}{unit}", "right")
    left.axvline(1.0, color=INK, linewidth=0.9, linestyle=":")
    named_bars(left, [findings.label(method) for method in methods])
    shades = ", ".join(f"temperature {temperature:g}" for temperature in temperatures)
    left.set_xlabel(f"over plain decoding, batch {rows[0].batch_size}; from the top: {shades}", loc="left")
    finish(left, _SPEEDUP, "x", 1.12)
    finish(right, "τ, tokens per step", "x", 1.12)
    right.tick_params(axis="y", labelleft=False)
    return figure


def _draw_ablation(findings: Findings, differences: Sequence[Difference]) -> Figure:
    """Bars of the points of top-5 accuracy that each head gains or loses."""
    heads = max(len(one.top5) for one in differences)
    figure = new_figure(_WIDTH, _MARGIN_INCHES + _BAR_INCHES * max(5, len(differences) * min(heads, 3)))
    axes = figure.subplots()
    for head in range(heads):
        shown = [(at, one.top5[head].estimate) for at, one in enumerate(differences) if head < len(one.top5)]
        offset = (head - (heads - 1) / 2) * 0.8 / heads
        axes.barh(
            [at + offset for at, _ in shown], [100 * found.value for _, found in shown], 0.74 / heads,
            xerr=[100 * (found.error or 0.0) for _, found in shown], error_kw=_ERROR,
            color=shade(BLUE, head), label=f"head {head + 1}",
        )  # fmt: skip
    axes.axvline(0.0, color=INK, linewidth=0.9)
    label = findings.label
    named_bars(axes, [f"{label(one.method)}\nagainst {label(one.against)}" for one in differences])
    finish(axes, "Points of top-5 accuracy gained or lost", "x", 1.0)
    legend_below(figure, axes)
    return figure


def _draw_lines(findings: Findings, panels: Sequence[_Panel]) -> Figure:
    """Panels side by side, with one legend."""
    figure = new_figure(_WIDTH, 4.8)
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
        finish(axes, panel.title, room=1.0)
    legend_below(figure, all_axes[0])
    return figure


def _draw_line(axes: Any, panel: _Panel, method: Method, methods: Sequence[Method], label: str) -> None:
    scale = 100 if panel.percent else 1
    points = [(place, scale * v.value, scale * (v.error or 0)) for m, place, v in panel.points if m == method]
    number = [other for other in methods if other.system == method.system].index(method)
    style = line_style(number) | {"color": _colour(methods, method), "label": label, "capsize": 2}
    places, values, errors = zip(*points, strict=True) if points else ((), (), ())
    axes.errorbar(places, values, errors, elinewidth=0.8, **style)


def _colour(methods: Sequence[Method], method: Method) -> str:
    """That of the system; of a system of one's own the next free one."""
    return system_colour(method.system, list(dict.fromkeys(m.system for m in methods)).index(method.system))


def _rule(method: Method) -> str:
    """How a tree is grown, without its size.

    >>> _rule(Method("clover1", "budget:4")), _rule(Method("clover2", "clover2"))
    ('budget', 'clover2')
    """
    tree = str(method.tree)
    return tree.rsplit(":", 1)[0] if tree.rsplit(":", 1)[-1].isdigit() else tree
