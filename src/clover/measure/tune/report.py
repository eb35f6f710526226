"""What `clover tune` tells: a table of the best trees, and all numbers as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clover.drafting.tuning import PLAIN
from clover.measure.report.table import Table
from clover.measure.report.words import times
from clover.measure.tune.timing import Timed
from clover.tree import parse_tree

_SHOWN = 4  # trees per batch size in the table, besides plain decoding
_COLUMNS = ("batch", "tree", "draft\ntokens", "τ", "step,\nms", "tokens/s", "speed-up")


def best_table(sizes: Sequence[Sequence[Timed]]) -> Table:
    """The fastest trees of each batch size, given the fastest first, and plain decoding."""
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
