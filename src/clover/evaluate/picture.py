"""The evaluation as one picture: accuracy of the heads, acceptance by kind of token and by position in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from clover.evaluate.acceptance import Setting, Share
from clover.evaluate.accuracy import TOP, HeadAccuracy
from clover.evaluate.report import setting_label
from clover.report.figure import COLOURS, FAINT, GREEN, INK, ORANGE, finish, new_figure, note, shade
from clover.report.statistics import Estimate

_FEW = 30  # fewer tokens than that say too little to be drawn
_MOST = 6  # settings that one picture can hold
_ERROR: Any = {"ecolor": INK, "elinewidth": 0.9, "capsize": 2}


def draw(heads: HeadAccuracy, settings: Sequence[Setting], label: str, models: str, foot: str) -> Figure:
    """The picture as a matplotlib figure; error bars are standard errors over texts."""
    first = settings[0].tree
    tree = first if " " in first else f"tree {first}"  # such as "own tree"
    shown = [setting for setting in settings if setting.tree == first][:2]
    taus = ", ".join(f"{s.all.tau.text()} at temperature {s.temperature:g}" for s in shown)
    figure = new_figure(12, 6, f"{label}, {tree}: τ {taus}", models, foot)
    first_panel, *others = figure.subplots(1, 3, width_ratios=(1.25, 1.25, 0.9))
    _draw_heads(first_panel, heads)
    _draw_kinds(others[0], settings[:_MOST])
    _draw_positions(others[1], settings[:_MOST])
    return figure


def _draw_heads(axes: Any, heads: HeadAccuracy) -> None:
    """Per head the shares within the best 1, 2, 3, 5 and 10, one in front of the other; chained as dots."""
    places, shares = range(1, len(heads.totals) + 1), heads.shares(heads.forced)
    for rank in reversed(range(len(TOP))):
        heights, _ = _percents([row[rank] for row in shares])
        axes.bar(places, heights, 0.8, color=shade(GREEN, rank), label=f"top {TOP[rank]}")
        if rank in (0, len(TOP) - 1):
            for head, height in zip(places, heights, strict=True):
                note(axes, head, height, f"{height:.0f}", "below" if rank == 0 and height > 8 else "above")
    heights, errors = _percents([row[0] for row in heads.shares(heads.chained)])
    axes.errorbar(
        places, heights, errors, fmt="o-", color=ORANGE, mec="white", label="top 1, chained", **_ERROR
    )
    axes.set_xticks(places)
    axes.set_xlabel("head, forced with the text's tokens\nchained: all heads before were right, too")
    _finish(axes, "Accuracy of each head, %", 3)


def _draw_kinds(axes: Any, settings: Sequence[Setting]) -> None:
    """Bars of the share of draft tokens among the new tokens of each kind, a colour per setting."""
    labels = list(dict.fromkeys(share.label for setting in settings for share in _enough(setting.kinds)))
    width = 0.84 / len(settings)
    for number, setting in enumerate(settings):
        shares = _enough(setting.kinds)
        offset = (number - (len(settings) - 1) / 2) * width
        heights, errors = _percents([share.share for share in shares])
        axes.bar(
            [labels.index(share.label) + offset for share in shares], heights, width * 0.94, yerr=errors,
            color=COLOURS[number], label=setting_label(setting), error_kw=_ERROR,
        )  # fmt: skip
    axes.set_xticks(range(len(labels)), [label.replace(" ", "\n", 1) for label in labels], fontsize=9)
    axes.set_xlabel(f"of the new tokens of each kind, at least {_FEW}")
    _finish(axes, "Accepted draft tokens by kind, %", 2)


def _draw_positions(axes: Any, settings: Sequence[Setting]) -> None:
    """Lines of the same share by the number of the new token."""
    labels = list(dict.fromkeys(share.label for setting in settings for share in setting.positions))
    for number, setting in enumerate(settings):
        shares = _enough(setting.positions)
        heights, errors = _percents([share.share for share in shares])
        places = [labels.index(share.label) for share in shares]
        axes.errorbar(places, heights, errors, fmt="o-", color=COLOURS[number], **_ERROR)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.4, max(len(labels) - 0.6, 0.4))
    axes.set_xlabel("number of the new token")
    _finish(axes, "… by position, %", 0)


def _enough(shares: Sequence[Share]) -> list[Share]:
    return [share for share in shares if share.emitted >= _FEW]


def _percents(shares: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """Heights and errors."""
    return [100 * share.value for share in shares], [100 * (share.error or 0.0) for share in shares]


def _finish(axes: Any, title: str, columns: int) -> None:
    axes.set_ylim(0, 100)
    finish(axes, title, room=1.25)
    axes.set_yticks(range(0, 101, 20))
    axes.tick_params(axis="y", colors=FAINT)
    if columns:
        axes.legend(frameon=False, loc="upper right", fontsize=9, ncols=columns, handlelength=1.2)
