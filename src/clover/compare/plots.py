"""The plots of a comparison as matplotlib figures; each is drawn only where the results have something for it.

A system keeps its colour in all plots; what else tells its methods apart (loss, budget, tree) changes lines and shades.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from clover.compare.plan import PLAIN, Method
from clover.compare.style import PHASE_COLOURS, Palette, finish, legend_below, named_bars, shade
from clover.compare.summary import Findings, Row
from clover.engine import STEP_PHASES
from clover.pictures import FAINT, INK

_WIDTH = 10.0
_BAR_INCHES, _MARGIN_INCHES = 0.3, 1.1
_ROW_LIMIT = 40  # bars of a plot; with more of them none can be read


def make_plots(findings: Findings) -> dict[str, Figure]:
    """All plots by the name of their file."""
    makers: dict[str, Callable[[Findings], Figure | None]] = {
        "speed": draw_speed,
        "batch-size": draw_batch_sizes,
        "step": draw_steps,
        "depth": draw_depths,
        "accuracy": draw_accuracy,
        "training": draw_training,
        "tree-size": draw_tree_sizes,
        "learning-rate": draw_learning_rates,
        "ablation": draw_ablation,
    }
    drawn = {name: draw(findings) for name, draw in makers.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def draw_speed(findings: Findings) -> Figure | None:
    """Bars of speed-up and of τ per method, one per temperature, at the smallest batch size."""
    rows = [r for r in _smallest_batch(findings) if r.method.system != PLAIN]
    if not rows:
        return None
    palette = Palette(findings)
    methods = _unique(row.method for row in rows)[:_ROW_LIMIT]
    temperatures = findings.temperatures
    figure = _bar_figure(len(methods) * len(temperatures))
    left, right = figure.subplots(1, 2, sharey=True)
    values = {(row.method, row.temperature): row for row in rows}
    for number, temperature in enumerate(temperatures):
        for place, method in enumerate(methods):
            if row := values.get((method, temperature)):
                at = place + (number - (len(temperatures) - 1) / 2) * 0.8 / len(temperatures)
                colour = shade(palette.colour(method), number)
                spread = [[row.speedup - row.low], [row.high - row.speedup]]
                size = 0.8 / len(temperatures) * 0.92
                left.barh(at, row.speedup, size, color=colour, xerr=spread, error_kw=_ERROR)
                _note(left, row.high, at, f"{row.speedup:.2f}×")
                right.barh(at, row.tau, size, color=colour)
                _note(right, row.tau, at, f"{row.tau:.2f}")
    left.axvline(1.0, color=INK, linewidth=0.9, linestyle=":")
    named_bars(left, [findings.label(method) for method in methods])
    modes = ", ".join(f"temperature {t:g}" for t in temperatures)
    order = f"from the top: {modes}" if len(temperatures) > 1 else modes
    finish(left, "Speed-up over plain decoding", axis="x")
    finish(right, "τ, tokens per step", axis="x")
    right.tick_params(axis="y", length=0, labelleft=False)
    figure.supxlabel(
        f"batch {findings.batch_sizes[0]}; {order}{_mean_over(findings)}", color=FAINT, fontsize=9
    )
    return figure


def draw_batch_sizes(findings: Findings) -> Figure | None:
    """Lines of tokens per second against the batch size, a panel per temperature."""
    if len(findings.batch_sizes) < 2:
        return None
    figure = Figure(figsize=(_WIDTH, 4.8), layout="constrained")
    panels = figure.subplots(1, len(findings.temperatures), squeeze=False)[0]
    palette = Palette(findings)
    for axes, temperature in zip(panels, findings.temperatures, strict=True):
        rows = [row for row in findings.rows() if row.temperature == temperature]
        _lines(axes, findings, palette, rows, lambda row: (row.batch_size, row.speed))
        axes.set_xticks(findings.batch_sizes)
        axes.set_xlabel("batch size")
        axes.set_ylim(bottom=0)
        finish(axes, f"Tokens per second, temperature {temperature:g}")
    legend_below(figure, panels[0])
    return figure


def draw_steps(findings: Findings) -> Figure | None:
    """Stacked bars of the phases of a decoding step, at the lowest temperature and the smallest batch size."""
    rows = [r for r in _smallest_batch(findings) if r.temperature == findings.temperatures[0]][:_ROW_LIMIT]
    if not rows:
        return None
    figure = _bar_figure(len(rows))
    axes = figure.subplots()
    starts = [0.0] * len(rows)
    for phase, colour in zip(STEP_PHASES, PHASE_COLOURS, strict=True):
        widths = [row.milliseconds[phase] for row in rows]
        axes.barh(range(len(rows)), widths, 0.74, left=starts, color=colour, label=phase)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for place, end in enumerate(starts):
        _note(axes, end, place, f"{end:.1f}")
    named_bars(axes, [findings.label(row.method) for row in rows])
    finish(axes, "Milliseconds of a decoding step", axis="x")
    legend_below(figure, axes)
    return figure


def draw_depths(findings: Findings) -> Figure | None:
    """Lines of the share accepted at each depth of the tree, a panel per temperature."""
    rows = [row for row in _smallest_batch(findings) if row.depths]
    if not rows:
        return None
    figure = Figure(figsize=(_WIDTH, 4.8), layout="constrained")
    panels = figure.subplots(1, len(findings.temperatures), squeeze=False, sharey=True)[0]
    palette = Palette(findings)
    for axes, temperature in zip(panels, findings.temperatures, strict=True):
        for row in (r for r in rows if r.temperature == temperature):
            depths = range(1, len(row.depths) + 1)
            axes.plot(depths, [100 * d for d in row.depths], **palette.line(row.method))
        axes.set_ylim(0, 100)
        _whole_ticks(axes, max(len(row.depths) for row in rows))
        axes.set_xlabel("depth in the token tree, of the steps that came there")
        finish(axes, f"Accepted, %, temperature {temperature:g}")
    legend_below(figure, panels[0])
    return figure


def draw_accuracy(findings: Findings) -> Figure | None:
    """Lines of the accuracy per head: first choice and five best, forced; first choice, chained."""
    found = findings.head_rows()
    if not found:
        return None
    figure = Figure(figsize=(_WIDTH, 4.6), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    palette = Palette(findings)
    first, last = found[0].top.index(1), found[0].top.index(5)
    kinds = (("top 1", "forced", first), ("top 5", "forced", last), ("top 1, chained", "chained", first))
    for axes, (title, name, place) in zip(panels, kinds, strict=True):
        for row in found:
            heads = getattr(row, name)
            shares = [100 * head[place] for head in heads]
            axes.plot(range(1, len(heads) + 1), shares, **palette.line(row.method))
        _whole_ticks(axes, max(len(row.forced) for row in found))
        axes.set_ylim(0, 100)
        axes.set_xlabel("head")
        finish(axes, f"Right within the {title}, %")
    legend_below(figure, panels[0])
    return figure


def draw_training(findings: Findings) -> Figure | None:
    """Curves of the first head's accuracy against tokens, and against time."""
    curves = [one for one in findings.trained if len(one.curve) > 1]
    if not curves:
        return None
    figure = Figure(figsize=(_WIDTH, 4.8), layout="constrained")
    by_tokens, by_time = figure.subplots(1, 2, sharey=True)
    palette = Palette(findings)
    for one in curves:
        height = [100 * point.accuracy[0] for point in one.curve]
        style = palette.line(one.method) | {"marker": ""}
        by_tokens.plot([point.tokens / 1e6 for point in one.curve], height, **style)
        by_time.plot([point.seconds / 60 for point in one.curve], height, **style)
    by_tokens.set_xlabel("million tokens")
    by_time.set_xlabel("minutes")
    finish(by_tokens, "First choice of head 1 while training, %")
    finish(by_time, "The same against time")
    legend_below(figure, by_tokens)
    return figure


def draw_tree_sizes(findings: Findings) -> Figure | None:
    """Curves of τ and of speed-up against the size of the tree, for drafts with several trees of one kind."""
    rows = [
        r for r in _smallest_batch(findings) if r.temperature == findings.temperatures[0] and r.method.tree
    ]
    families: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        m = row.method
        families.setdefault((m.system, m.loss, m.budget, m.learning_rate, _rule(m)), []).append(row)
    families = {
        key: sorted(found, key=lambda r: r.nodes) for key, found in families.items() if len(found) > 2
    }
    if not families:
        return None
    figure = Figure(figsize=(_WIDTH, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    palette = Palette(findings)
    for found in families.values():
        style = palette.line(found[0].method)
        style["label"] = f"{style['label'].rsplit(', ', 1)[0]}, {_rule(found[0].method)}"
        left.plot([row.nodes for row in found], [row.tau for row in found], **style)
        right.plot([row.nodes for row in found], [row.speedup for row in found], **style)
    for axes, title in ((left, "τ, tokens per step"), (right, "Speed-up over plain decoding")):
        _log_ticks(axes, {row.nodes for found in families.values() for row in found})
        axes.set_xlabel("draft tokens per step at most")
        finish(axes, title)
    legend_below(figure, left)
    return figure


def draw_learning_rates(findings: Findings) -> Figure | None:
    """Curves of τ and of the first head's accuracy against the learning rate."""
    families: dict[tuple[object, ...], list[Any]] = {}
    for one in findings.trained:
        families.setdefault((one.method.system, one.method.loss, one.method.budget), []).append(one)
    chosen = [found for found in families.values() if len({t.method.learning_rate for t in found}) > 1]
    if not chosen:
        return None
    taus = {_without_tree(row.method): row.tau for row in reversed(findings.rows())}
    figure = Figure(figsize=(_WIDTH, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    palette = Palette(findings)
    for found in chosen:
        found = sorted(found, key=lambda t: t.method.learning_rate)
        style = palette.line(found[0].method)
        style["label"] = ", ".join(p for p in style["label"].split(", ") if not p.startswith("rate "))
        points = [(t, taus[_without_tree(t.method)]) for t in found if _without_tree(t.method) in taus]
        left.plot([t.method.learning_rate for t, _ in points], [tau for _, tau in points], **style)
        right.plot([t.method.learning_rate for t in found], [100 * t.accuracy[0] for t in found], **style)
    for axes, title in ((left, "τ, tokens per step"), (right, "First choice of head 1, held out, %")):
        _log_ticks(axes, {t.method.learning_rate for found in chosen for t in found})
        axes.set_xlabel("peak learning rate")
        finish(axes, title)
    legend_below(figure, right)
    return figure


def draw_ablation(findings: Findings) -> Figure | None:
    """Bars of the points of top-5 accuracy that each head gains or loses."""
    found = findings.differences()[:_ROW_LIMIT]
    if not found:
        return None
    heads = max(len(one.top5) for one in found)
    figure = _bar_figure(len(found) * min(heads, 3))
    axes = figure.subplots()
    for head in range(heads):
        shown = [(place, one.top5[head]) for place, one in enumerate(found) if head < len(one.top5)]
        offset = (head - (heads - 1) / 2) * 0.8 / heads
        places = [place + offset for place, _ in shown]
        axes.barh(
            places,
            [100 * v for _, v in shown],
            0.74 / heads,
            color=shade("#2f6f9e", head),
            label=f"head {head + 1}",
        )
    axes.axvline(0.0, color=INK, linewidth=0.9)
    named_bars(axes, [f"{findings.label(o.method)}\nagainst {findings.label(o.against)}" for o in found])
    finish(axes, "Points of top-5 accuracy gained or lost", axis="x", from_zero=False)
    legend_below(figure, axes)
    return figure


_ERROR = {"ecolor": INK, "elinewidth": 0.9, "capsize": 2}


def _smallest_batch(findings: Findings) -> list[Row]:
    return [row for row in findings.rows() if row.batch_size == findings.batch_sizes[0]]


def _bar_figure(bars: int) -> Figure:
    return Figure(figsize=(_WIDTH, _MARGIN_INCHES + _BAR_INCHES * max(bars, 5)), layout="constrained")


def _note(axes: Any, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", color=INK, fontsize=8.5)


def _lines(
    axes: Any,
    findings: Findings,
    palette: Palette,
    rows: Sequence[Row],
    point: Callable[[Row], tuple[float, float]],
) -> None:
    for method in _unique(row.method for row in rows):
        points = sorted(point(row) for row in rows if row.method == method)
        axes.plot([x for x, _ in points], [y for _, y in points], **palette.line(method))


def _whole_ticks(axes: Any, last: int) -> None:
    axes.set_xticks(range(1, last + 1))
    axes.set_xlim(0.8, last + 0.2)


def _log_ticks(axes: Any, values: Iterable[float]) -> None:
    """A logarithmic axis with a tick at each value."""
    axes.set_xscale("log")
    ticks = sorted(values)
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _mean_over(findings: Findings) -> str:
    return f"; mean over {len(findings.tasks)} tasks" if len(findings.tasks) > 1 else ""


def _rule(method: Method) -> str:
    """How a tree is grown, without its size.

    >>> _rule(Method("clover1", "budget:4")), _rule(Method("clover2", "clover2"))
    ('budget', 'clover2')
    """
    tree = str(method.tree)
    return tree.rsplit(":", 1)[0] if tree.rsplit(":", 1)[-1].isdigit() else tree


def _without_tree(method: Method) -> tuple[object, ...]:
    return method.system, method.loss, method.budget, method.learning_rate


def _unique(values: Iterable[Method]) -> list[Method]:
    return list(dict.fromkeys(values))
