"""The tables of all commands and the picture of a benchmark, of numbers made by hand.

Tables are compared with files, as a terminal shows them.

A file is renewed with the text that the failing comparison shows.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text
from rich.console import Console

from clover.measure.acceptance import EvaluatedSetting, Group, PositionBin, Share
from clover.measure.cost import TrainingCost, break_even_table, tau_table
from clover.measure.evaluate import make_tables
from clover.measure.ranks import HeadAccuracy
from clover.measure.report.provenance import Provenance
from clover.measure.report.statistics import Estimate
from clover.measure.report.table import Table
from clover.measure.speed_report import draw, make_speed_report, speed_table, step_table
from clover.measure.step_costs import TextCost, TreeCost
from clover.measure.steps import StepCost
from clover.measure.tune import TimedTree, best_table
from clover.metrics import Acceptance
from tests.measure.hand import found

FILES = Path(__file__).parent / "tables"
SETTINGS = [(1, 0.0), (1, 0.8), (4, 0.0)]


def bench() -> list[Table]:
    metrics = found(SETTINGS, ["own tree", "chain:3"])
    return [speed_table(metrics), step_table(metrics)]


def evaluate() -> list[Table]:
    counts = Acceptance()
    for count in (2, 3, 4, 5, 6, 7):
        counts.record(count, drafted_depth=6)
    groups = Group("mt_bench", ("",) * 9, (counts,) * 9), Group("qa", ("",), (counts,))
    kinds = (Share("first of a word", 120, Estimate(0.5, 0.03)), Share("digits", 4, Estimate(1.0)))
    places = (
        PositionBin(0, 256, 9, 1300, 5200, Estimate(4.0, 0.1)),
        PositionBin(16384, 32768, 1, 4, 12, Estimate(3.0)),
    )
    settings = [
        EvaluatedSetting("own tree", 25, 0.0, groups, kinds, places),
        EvaluatedSetting("chain:6", 6, 1.0, groups[:1], kinds[:1]),
    ]
    heads = HeadAccuracy(((10, 0),) * 2, (((7, 8, 8, 9, 9), (0,) * 5),) * 2, (((7,) * 5, (0,) * 5),) * 2)
    return make_tables(
        settings, {"own tree": "own tree, clover2"}, True, heads, "The draft was trained for 1 depth."
    )


def tune() -> list[Table]:
    rows = [("chain:2", 3, 2.1, 0.025), ("paths:0,1,00", 4, 2.2, 0.03), ("plain", 1, 1.0, 0.02)]
    timed = [
        [TimedTree(StepCost(size, tree, nodes, seconds), tau, 0.02) for tree, nodes, tau, seconds in rows]
        for size in (1, 16)
    ]
    return [best_table(timed, "the median, all trees timed in turn")]


def cost() -> list[Table]:
    def text(size: int, tree: str, depth: int, fixed: float, per_token: float) -> TextCost:
        step = StepCost(size, tree, depth + 1, size * fixed, 0.0004, fixed=size * fixed, per_token=per_token)
        return TextCost(100, 0.1, step)

    costs = [
        TreeCost(text(size, "plain", 0, 0.01, 0.0), text(size, tree, depth, 0.011, 0.001), depth)
        for size in (1, 4)
        for tree, depth in (("chain:2", 2), ("chain:8", 8))
    ]
    taus = (2.0, 4.0)
    return [tau_table(costs, taus), break_even_table(costs, TrainingCost(3600.0), taus)]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [bench, evaluate, tune, cost])
def test_tables(command: Callable[[], Sequence[Table]], width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    for table in command():
        console.print(table.title, table.note, table.rich(width), sep="\n")
    assert isinstance(console.file, io.StringIO)
    shown = "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())
    file = FILES / f"{command.__name__}-{width}.txt"
    assert shown == file.read_text(encoding="utf-8")
    assert max(map(len, shown.splitlines())) <= width


def test_columns_that_say_nothing_are_left_out() -> None:
    assert "of ideal" not in speed_table(found([(1, 0.0)], [])).columns


@pytest.mark.parametrize("settings", [SETTINGS[:1], SETTINGS[:2], SETTINGS])
def test_a_panel_per_setting(settings: list[tuple[int, float]]) -> None:
    figure = draw(found(settings, ["clover1", "clover2", "recall"]), "A headline", "a target", "a machine")
    shown = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    assert {"plain decoding", "Clover-1 (paper)", "Clover-2 (paper)", "Recall (ours)"} <= set(shown)
    assert sum(text.startswith("Speed-up") for text in shown) == len(settings)


@pytest.mark.parametrize(("dtype", "told"), [(torch.bfloat16, True), (torch.float32, False)])
def test_near_ties_of_narrow_dtypes_are_named(dtype: torch.dtype, told: bool) -> None:
    origin = Provenance.here("clover bench", torch.device("cpu"), dtype)
    report = make_speed_report("title", origin, [("target", "t")], "run", found([(1, 0.0)], ["own"]), [])
    assert ("bfloat16: near-ties differ, --dtype float32 is exact" in dict(report.notes)["identical"]) == told


def test_speeds_have_three_digits() -> None:
    slow = [replace(one, tokens_per_second=one.tokens_per_second / 2) for one in found([(1, 0.0)], [])]
    assert [row[3] for row in speed_table(slow).rows] == ["1.50", "1.50"]
    fast = [replace(one, tokens_per_second=one.tokens_per_second * 10) for one in found([(1, 0.0)], [])]
    assert [row[3] for row in speed_table(fast).rows] == ["30.0", "30.0"]
