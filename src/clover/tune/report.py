"""What `clover tune` tells: a table of the best trees, all numbers as JSON, a picture of speed-up by tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure

from clover.drafting.tuning import PLAIN
from clover.report.figure import COLOURS, finish, legend_below, new_figure
from clover.report.table import Table
from clover.report.words import times
from clover.tree import TreeShape, parse_tree
from clover.tune.timing import Timed

_SHOWN = 4  # trees per batch size in the table, besides plain decoding
_COLUMNS = ("batch", "tree", "draft\ntokens", "τ", "step,\nms", "tokens/s", "speed-up")
_TICKS = (0, 1, 2, 4, 8, 16, 32, 64)


def best_table(sizes: Sequence[Sequence[Timed]]) -> Table:
    """The fastest trees of each batch size, and plain decoding.

    Args:
        sizes: per batch size all trees, the fastest first.
    """
    rows, sections = list[tuple[str, ...]](), list[int]()
    for timed in sizes:
        sections.append(len(rows))
        shown = [one for place, one in enumerate(timed) if place < _SHOWN or one.choice.tree == PLAIN]
        rows += [_row(one, str(one.choice.batch_size) if one is timed[0] else "") for one in shown]
    note = "τ: tokens per step and text, counted; step: the median, all trees timed in turn"
    return Table(
        "The best trees per batch size", _COLUMNS, rows, note, words=2, strong=sections, sections=sections,
        optional=("draft\ntokens",),
    )  # fmt: skip


def _row(one: Timed, size: str) -> tuple[str, ...]:
    return (
        size,
        tree_label(one.choice.tree),
        str(one.nodes - 1),
        f"{one.choice.tau:.2f}",
        f"{1e3 * one.choice.step_seconds:.1f}",
        f"{one.choice.tokens_per_second:.1f}",
        times(one.speedup),
    )


def as_data(one: Timed) -> dict[str, Any]:
    """The numbers of a tree as JSON values."""
    return asdict(one.choice) | {"nodes": one.nodes, "steps": one.steps, "speedup": one.speedup}


def tree_label(tree: str) -> str:
    """A tree for people; lists of paths as nodes per depth.

    >>> tree_label("plain"), tree_label("chain:3"), tree_label("paths:0,1,00,01,000")
    ('plain decoding', 'chain:3', 'static 2+2+1')
    """
    if not tree.startswith("paths:"):
        return "plain decoding" if tree == PLAIN else tree
    shape: Any = parse_tree(tree)
    return "static " + "+".join(str(count) for depth, count in Counter(shape.depths).items() if depth)


def draw(sizes: Sequence[Sequence[Timed]], title: str, subtitle: str, foot: str) -> Figure:
    """Speed-up by draft tokens: a line through the chains of each batch size, dots for other trees."""
    figure = new_figure(9, 5, title, subtitle, foot)
    axes = figure.subplots()
    for timed, colour in zip(sizes, cycle(COLOURS), strict=False):
        label = f"batch {timed[0].choice.batch_size}"
        chains = sorted((one.nodes - 1, one.speedup) for one in timed if _is_chain(one.choice.tree))
        axes.plot(*zip(*chains, strict=True), "-o", color=colour, markersize=4, label=label)
        for one in timed:
            if not _is_chain(one.choice.tree):
                axes.plot(one.nodes - 1, one.speedup, "s", color=colour, markersize=5, alpha=0.6)
        axes.plot(timed[0].nodes - 1, timed[0].speedup, "*", color=colour, markersize=14)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xlim(left=-0.3)
    axes.set_xticks(_TICKS, list(map(str, _TICKS)))
    axes.set_xlabel("draft tokens per step (lines: chains, squares: other trees, star: best)")
    finish(axes, "Speed-up against plain decoding")
    legend_below(figure, axes)
    return figure


def _is_chain(tree: str) -> bool:
    shape = None if tree == PLAIN else parse_tree(tree)
    return shape is None or (isinstance(shape, TreeShape) and shape == TreeShape.chain(shape.max_depth))
