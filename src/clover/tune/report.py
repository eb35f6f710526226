"""What `clover tune` tells: a table of the best trees, all numbers as JSON, a picture of speed-up by tree."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, groupby
from typing import Any

from matplotlib.figure import Figure

from clover.drafting.tuning import PLAIN, Tuning
from clover.report.figure import COLOURS, Picture, finish, legend_below, new_figure
from clover.report.output import Report
from clover.report.provenance import Provenance
from clover.report.table import Table
from clover.report.words import duration, mode, system_name, times
from clover.tree import TreeShape, parse_tree
from clover.tune.options import TuneOptions
from clover.tune.timing import Timed

_SHOWN = 4  # trees per batch size in the table, besides plain decoding
_COLUMNS = ("batch", "tree", "draft\ntokens", "τ", "step,\nms", "tokens/s", "speed-up", "steps\ntimed")


@dataclass(frozen=True)
class Found:
    """All that a tuning found.

    Args:
        system: the draft's.
        prompts, new_tokens: what acceptance was counted on.
        seconds: that it took.
        timed: the fastest first within each batch size.
    """

    options: TuneOptions
    origin: Provenance
    system: str
    prompts: int
    new_tokens: int
    seconds: float
    tuning: Tuning
    timed: list[Timed]

    @property
    def by_size(self) -> dict[int, list[Timed]]:
        """What was timed at each batch size."""
        return {size: list(some) for size, some in groupby(self.timed, lambda one: one.choice.batch_size)}

    def speedup(self, one: Timed) -> float:
        """Against plain decoding at the same batch size, prefill left out."""
        plain = next(other for other in self.by_size[one.choice.batch_size] if other.choice.tree == PLAIN)
        return one.choice.tokens_per_second / plain.choice.tokens_per_second


def make_report(found: Found) -> Report:
    """Table, numbers and picture."""
    options = found.options
    written = f"{found.prompts} prompts, {found.new_tokens:,} new tokens, {mode(options.temperature)}"
    best = [f"{times(found.speedup(some[0]))} at batch {size}" for size, some in found.by_size.items()]
    trees = [
        asdict(one.choice) | {"nodes": one.nodes, "steps": one.steps, "speedup": found.speedup(one)}
        for one in found.timed
    ]
    return Report(
        title=f"{system_name(found.system)}, tuned: {', '.join(best[:3])}",
        provenance=found.origin,
        facts=[
            ("target", options.target or "embedded"),
            ("draft", f"{options.draft or 'embedded'} ({system_name(found.system)})"),
            ("acceptance on", written),
            ("time", duration(found.seconds)),
        ],
        tables=[_table(found)],
        pictures=[Picture("Speed-up by tree", partial(_draw, found))],
        data={
            "seconds": found.seconds,
            "prompts": found.prompts,
            "new_tokens": found.new_tokens,
            "trees": trees,
        },
    )


def _table(found: Found) -> Table:
    rows, strong, sections = list[tuple[str, ...]](), list[int](), list[int]()
    for size, timed in found.by_size.items():
        sections.append(len(rows))
        strong.append(len(rows))
        shown = [one for place, one in enumerate(timed) if place < _SHOWN or one.choice.tree == PLAIN]
        rows += [_row(found, one, str(size) if place == 0 else "") for place, one in enumerate(shown)]
    note = "τ: tokens per step and text, counted; step: the median, all trees timed in turn"
    return Table(
        "The best trees per batch size", _COLUMNS, rows, note, words=2, strong=strong, sections=sections,
        optional=("steps\ntimed", "draft\ntokens"),
    )  # fmt: skip


def _row(found: Found, one: Timed, size: str) -> tuple[str, ...]:
    return (
        size,
        tree_label(one.choice.tree),
        str(one.nodes - 1),
        f"{one.choice.tau:.2f}",
        f"{1e3 * one.choice.step_seconds:.1f}",
        f"{one.choice.tokens_per_second:.1f}",
        times(found.speedup(one)),
        str(one.steps),
    )


def tree_label(tree: str) -> str:
    """A tree for people; lists of paths as nodes per depth.

    >>> tree_label("plain"), tree_label("chain:3"), tree_label("paths:0,1,00,01,000")
    ('plain decoding', 'chain:3', 'static 2+2+1')
    """
    if not tree.startswith("paths:"):
        return "plain decoding" if tree == PLAIN else tree
    shape: Any = parse_tree(tree)
    return "static " + "+".join(str(len(level.nodes)) for level in shape.levels)


def _draw(found: Found) -> Figure:
    """Speed-up by draft tokens: a line through the chains of each batch size, dots for other trees."""
    report = make_report(found)
    figure = new_figure(
        9, 5, report.title, f"draft {report.facts[1][1]}; {report.facts[2][1]}", found.origin.line
    )
    axes = figure.subplots()
    for (size, timed), colour in zip(found.by_size.items(), cycle(COLOURS), strict=False):
        points = sorted((one.nodes - 1, found.speedup(one), _is_chain(one.choice.tree)) for one in timed)
        chains = [(nodes, speedup) for nodes, speedup, is_chain in points if is_chain]
        others = [(nodes, speedup) for nodes, speedup, is_chain in points if not is_chain]
        axes.plot(*zip(*chains, strict=True), "-o", color=colour, markersize=4, label=f"batch {size}")
        axes.plot(*zip(*others, strict=True), "s", color=colour, markersize=5, alpha=0.6) if others else None
        axes.plot(timed[0].nodes - 1, found.speedup(timed[0]), "*", color=colour, markersize=14)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xlim(left=-0.3)
    ticks = [0, 1, 2, 4, 8, 16, 32, 64]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel(
        "draft tokens per step (0 is plain decoding; lines: chains, squares: other trees, star: best)"
    )
    axes.set_ylabel("speed-up against plain decoding")
    finish(axes, "Speed-up by tree")
    legend_below(figure, axes)
    return figure


def _is_chain(tree: str) -> bool:
    shape = None if tree == PLAIN else parse_tree(tree)
    return shape is None or (isinstance(shape, TreeShape) and shape == TreeShape.chain(shape.max_depth))
