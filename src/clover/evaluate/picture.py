"""The evaluation as one picture: accuracy of the heads, acceptance by kind of token and by position in the text."""

from __future__ import annotations

import os
from typing import Any

from matplotlib.figure import Figure

from clover import pictures
from clover.evaluate.accuracy import TOP, shares
from clover.evaluate.report import EvaluationReport, setting_label
from clover.pictures import FAINT, GRID, INK

_COLOURS = ("#2f9e60", "#3b6fb6", "#c9803a", "#8b5fb0", "#b6483b", "#4a9ba8")
_ORANGE = "#f0a030"
_SHADES = ("#1d6b40", "#2f9e60", "#5db78a", "#93d0b0", "#c9e8d7")  # one per size of the top
_FEW = 30  # fewer tokens than that say too little to be drawn


def save_picture(report: EvaluationReport, path: str | os.PathLike[str]) -> None:
    """Draw the report into `path`, whole or not at all; the ending chooses the format.

    Raises:
        UserError: the file cannot be written.
    """
    pictures.save_picture(lambda: draw(report), path)


def draw(report: EvaluationReport) -> Figure:
    """The picture as a matplotlib figure, 12 by 6.4 inches."""
    figure = Figure(figsize=(12, 6.4))
    heads, kinds, positions = figure.subplots(
        1,
        3,
        width_ratios=(1.25, 1.25, 0.9),
        gridspec_kw={"left": 0.05, "right": 0.98, "top": 0.75, "bottom": 0.2, "wspace": 0.2},
    )
    figure.text(0.03, 0.925, _headline(report), fontsize=19, fontweight="bold")
    figure.text(0.03, 0.873, _subline(report), fontsize=10.5, color=FAINT)
    _draw_heads(heads, report)
    _draw_kinds(kinds, report)
    _draw_positions(positions, report)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    figure.text(
        0.03,
        0.03,
        f"{report.date}   {report.device}, {report.dtype} ({report.machine})   {versions}",
        fontsize=8.5,
        color=FAINT,
    )
    return figure


def _headline(report: EvaluationReport) -> str:
    first = report.settings[0].tree
    tree = first if " " in first else f"tree {first}"  # such as "own tree"
    shown = [s for s in report.settings if s.tree == first]
    taus = ", ".join(f"{s.acceptance.tau:.2f} at temperature {s.temperature:g}" for s in shown[:2])
    return f"{report.label}, {tree}: τ {taus}"


def _subline(report: EvaluationReport) -> str:
    models = f"target {_shortened(report.target)}, draft {_shortened(report.draft)}"
    if report.target == report.draft:
        models = f"{report.target} target and draft"
    return f"{models}; {report.prompts} prompts, {report.max_new_tokens} new tokens each"


def _shortened(name: str) -> str:
    return name if len(name) <= 32 else "…" + name[-31:]


def _draw_heads(axes: Any, report: EvaluationReport) -> None:
    """Per head the shares within the best 1, 2, 3, 5 and 10, one in front of the other; chained as dots."""
    heads = report.heads
    places = range(1, heads.heads + 1)
    forced = shares(heads.text, heads.positions)
    bars = {}
    for rank in reversed(range(len(TOP))):
        heights = [100 * row[rank] for row in forced]
        bars[rank] = axes.bar(places, heights, 0.8, color=_SHADES[rank], label=f"top {TOP[rank]}")
    for head, row in zip(places, forced, strict=True):
        _note(axes, head, 0, f"{100 * row[0]:.0f}", colour="white")
        _note(axes, head, 100 * row[-1], f"{100 * row[-1]:.0f}")
    chained = [100 * row[0] for row in shares(heads.chained, heads.positions)]
    line = axes.plot(places, chained, "o-", color=_ORANGE, markersize=7, mec="white", label="top 1, chained")
    _finish(axes, "Accuracy of each head, %")
    axes.set_xticks(places)
    _legend(axes, 3, [bars[0], bars[1], bars[2], bars[3], bars[4], *line])
    _caption(axes, "head; forced with the text's tokens\nchained: all heads before were right, too")


def _draw_kinds(axes: Any, report: EvaluationReport) -> None:
    settings = report.settings[: len(_COLOURS)]
    labels = [
        share.label
        for place, share in enumerate(settings[0].kinds)
        if any(s.kinds[place].emitted >= _FEW for s in settings)
    ]
    width = 0.84 / len(settings)
    for number, setting in enumerate(settings):
        offset = (number - (len(settings) - 1) / 2) * width
        found = {share.label: share for share in setting.kinds if share.emitted >= _FEW}
        for place, label in enumerate(labels):
            if label in found:
                height = 100 * found[label].share
                axes.bar(place + offset, height, width * 0.94, color=_COLOURS[number])
                if len(settings) <= 3:
                    _note(axes, place + offset, height, f"{height:.0f}")
        axes.bar(0, 0, color=_COLOURS[number], label=setting_label(setting))
    _finish(axes, "Accepted draft tokens by kind, %")
    axes.set_xticks(range(len(labels)), [label.replace(" ", "\n", 1) for label in labels], fontsize=9)
    _legend(axes, 2)
    _caption(axes, f"\n\nof the new tokens of each kind, at least {_FEW}")


def _draw_positions(axes: Any, report: EvaluationReport) -> None:
    settings = report.settings[: len(_COLOURS)]
    longest = max((setting.positions for setting in settings), key=len)
    for number, setting in enumerate(settings):
        points = [
            (i, 100 * share.share) for i, share in enumerate(setting.positions) if share.emitted >= _FEW
        ]
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", color=_COLOURS[number], linewidth=1.8)
    _finish(axes, "… by position, %")
    axes.set_xticks(range(len(longest)), [share.label for share in longest], fontsize=9.5)
    axes.set_xlim(-0.4, max(len(longest) - 0.6, 0.4))
    _caption(axes, "number of the new token")


def _note(axes: Any, x: float, y: float, text: str, colour: str = INK) -> None:
    axes.annotate(
        text,
        (x, y),
        (0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=colour,
        fontsize=8.5,
    )


def _legend(axes: Any, columns: int, handles: list[Any] | None = None) -> None:
    options: Any = {} if handles is None else {"handles": handles}
    axes.legend(
        frameon=False,
        loc="upper right",
        fontsize=9,
        borderaxespad=0.0,
        ncols=columns,
        handlelength=1.2,
        **options,
    )


def _caption(axes: Any, text: str) -> None:
    axes.text(0.5, -0.09, text, transform=axes.transAxes, ha="center", va="top", color=FAINT, fontsize=9.5)


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title)
    axes.tick_params(length=0)
    axes.grid(axis="y", color=GRID)
    axes.set_ylim(0, 124)
    axes.set_yticks(range(0, 101, 20))
