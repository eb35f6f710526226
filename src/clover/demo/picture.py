"""The demo's figures as one picture: speed, acceptance, and how much of the ideal was reached."""

from __future__ import annotations

import os
from typing import Any

from matplotlib.figure import Figure

from clover import pictures
from clover.demo.live import mode
from clover.demo.report import MethodResult, Report
from clover.pictures import FAINT, GREEN, GRID, INK

_COLOURS = {"transformers": "#cbd2d9", "plain": "#9aa5b1"}
_SHADES = (GREEN, "#5db78a")


def save_picture(report: Report, path: str | os.PathLike[str]) -> None:
    """Draw the report into `path`, whole or not at all; the ending chooses the format.

    Raises:
        UserError: the file cannot be written.
    """
    pictures.save_picture(lambda: draw(report), path)


def draw(report: Report) -> Figure:
    """The picture as a matplotlib figure, 12 by 6.4 inches."""
    figure = Figure(figsize=(12, 6.4))
    speeds, depths, ideals = figure.subplots(
        1,
        3,
        width_ratios=(1.5, 1.2, 1.0),
        gridspec_kw={"left": 0.055, "right": 0.975, "top": 0.75, "bottom": 0.19, "wspace": 0.22},
    )
    figure.text(0.03, 0.925, _headline(report), fontsize=20, fontweight="bold")
    figure.text(0.03, 0.873, _subline(report), fontsize=10.5, color=FAINT)
    _draw_speeds(speeds, report)
    _draw_acceptance(depths, report.drafted)
    _draw_ideals(ideals, report.drafted)
    figure.text(0.03, 0.03, _footline(report), fontsize=8.5, color=FAINT)
    return figure


def _headline(report: Report) -> str:
    best = report.drafted[0]
    text = f"{best.label}: {best.speedup:.2f}× the speed of plain decoding"
    return text + (", identical output" if all(m.identical for m in report.drafted) else "")


def _subline(report: Report) -> str:
    models = f"target {_shortened(report.target)}, draft {_shortened(report.draft)}"
    if report.target == report.draft:
        models = f"{report.target} target and draft"
    texts = f"{report.prompts} prompts, {report.max_new_tokens} new tokens each, batch 1"
    return f"{models}, tree of {report.tree_nodes} nodes; {texts}"


def _shortened(name: str) -> str:
    return name if len(name) <= 32 else "…" + name[-31:]


def _footline(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"{report.date}   {report.device}, {report.dtype} ({report.machine})   {versions}"


def _draw_speeds(axes: Any, report: Report) -> None:
    """Bars of tokens per second, grouped by temperature."""
    ticks, at = [], 0.0
    for temperature in dict.fromkeys(method.temperature for method in report.methods):
        group = [method for method in report.methods if method.temperature == temperature]
        _group_label(axes, at + (len(group) - 1) / 2, mode(temperature))
        for method in group:
            _draw_speed(axes, at, method)
            ticks.append((at, method.label.replace(" ", "\n")))
            at += 1.0
        at += 0.5
    _finish(axes, "Tokens per second")
    axes.set_xticks([place for place, _ in ticks], [label for _, label in ticks], fontsize=9.5)


def _draw_speed(axes: Any, at: float, method: MethodResult) -> None:
    height = method.tokens_per_second
    axes.bar(at, height, 0.84, color=GREEN if method.drafted else _COLOURS.get(method.name, FAINT))
    _note(axes, at, height, f"{height:.0f}", above=True)
    if method.drafted:
        _note(axes, at, height, f"{method.speedup:.2f}×\nτ {method.tau:.2f}")


def _draw_acceptance(axes: Any, methods: list[MethodResult]) -> None:
    """Bars of the share accepted at each depth, one shade per temperature."""
    width = 0.84 / len(methods)
    for number, method in enumerate(methods):
        offset = (number - (len(methods) - 1) / 2) * width
        places = [depth + offset for depth, _ in enumerate(method.acceptance_per_depth, start=1)]
        percent = [100 * share for share in method.acceptance_per_depth]
        axes.bar(places, percent, width * 0.94, color=_SHADES[number], label=mode(method.temperature))
        for place, height in zip(places, percent, strict=True):
            _note(axes, place, height, f"{height:.0f}", above=True, size=8.5)
    deepest = max(len(method.acceptance_per_depth) for method in methods)
    _finish(axes, "Acceptance at each depth, %")
    axes.set_xticks(range(1, deepest + 1))
    axes.set_xlim(0.4, max(deepest, 3) + 0.6)
    axes.set_ylim(0, 116)
    axes.set_yticks(range(0, 101, 20))
    axes.legend(frameon=False, loc="upper right", fontsize=9.5, borderaxespad=0.0, ncols=len(methods))
    _caption(axes, "depth in the token tree, of the steps that got there")


def _draw_ideals(axes: Any, methods: list[MethodResult]) -> None:
    """The speed-up reached inside the one that a draft without cost would give, and a dot per prompt."""
    for number, method in enumerate(methods):
        ideal, share = method.ideal_speedup or 0.0, method.ideal_share or 0.0
        axes.bar(number, ideal, 0.7, facecolor="#f3faf6", edgecolor=GREEN, linestyle=(0, (4, 3)))
        axes.bar(number, method.speedup, 0.7, color=_SHADES[number])
        _note(axes, number, max(ideal, method.speedup), f"ideal {ideal:.2f}×", above=True, size=9.5)
        _note(axes, number, method.speedup, f"{method.speedup:.2f}×\n{100 * share:.0f} %")
        spread = method.speedup_per_prompt
        axes.plot([number + 0.43] * len(spread), spread, "o", color=INK, markersize=3.5, alpha=0.55, mew=0)
    axes.axhline(1.0, color=INK, linewidth=0.9, linestyle=":")
    _finish(axes, "Speed-up, of the ideal")
    axes.set_xticks(range(len(methods)), [mode(method.temperature) for method in methods], fontsize=9.5)
    sides = (0.6, 0.65) if len(methods) > 1 else (1.1, 1.15)
    axes.set_xlim(-sides[0], len(methods) - 1 + sides[1])
    _caption(axes, "ideal: τ · plain step / verify step\ndots: the prompts one by one")


def _note(axes: Any, x: float, y: float, text: str, above: bool = False, size: float = 10.5) -> None:
    """Write just above or just below the top of a bar."""
    axes.annotate(
        text,
        (x, y),
        (0, 4 if above else -7),
        textcoords="offset points",
        ha="center",
        va="bottom" if above else "top",
        color=INK if above else "white",
        fontweight="normal" if size < 10 else "bold",
        fontsize=size,
        linespacing=1.4,
    )


def _group_label(axes: Any, x: float, text: str) -> None:
    axes.text(x, -0.12, text, transform=axes.get_xaxis_transform(), ha="center", color=FAINT, fontsize=9.5)


def _caption(axes: Any, text: str) -> None:
    axes.text(0.5, -0.085, text, transform=axes.transAxes, ha="center", va="top", color=FAINT, fontsize=9.5)


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title)
    axes.tick_params(length=0)
    axes.grid(axis="y", color=GRID)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.06)
