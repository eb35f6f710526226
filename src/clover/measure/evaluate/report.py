"""The tables of an evaluation; what follows ± is one standard error over texts."""

from collections.abc import Sequence
from pathlib import Path

from clover.measure.evaluate.acceptance import Setting
from clover.measure.evaluate.accuracy import TOP, HeadAccuracy, TopCounts
from clover.measure.report.statistics import Estimate
from clover.measure.report.table import Table

_SIDE_BY_SIDE = 3  # settings in one table of kinds
_IN_A_LINE = 4  # depths of a tree


def make_tables(heads: HeadAccuracy, settings: Sequence[Setting]) -> list[Table]:
    """Accuracy of the heads, acceptance, and where the draft is weak."""
    forced = "How often the text's next token is among a head's best 1, 2, 3, 5, 10."
    chained = "A head is right only where the first choices of all heads before it were right, too."
    some = range(0, len(settings), _SIDE_BY_SIDE)
    return [
        _head_table(heads, heads.forced, "Accuracy of the heads, forced with the text, %", forced),
        _head_table(heads, heads.chained, "Accuracy of the heads, chained, %", chained),
        _acceptance_table(settings),
        *(_weakness_table(settings[start : start + _SIDE_BY_SIDE]) for start in some),
    ]


def _head_table(heads: HeadAccuracy, counts: TopCounts, title: str, note: str) -> Table:
    rows = [
        [str(head), f"{positions:,}", *(map(_percent, row) if positions else "–" * len(TOP))]
        for head, (positions, row) in enumerate(zip(heads.totals, heads.shares(counts), strict=True), 1)
    ]
    return Table(title, ("head", "positions", *(f"top {size}" for size in TOP)), rows, note)


def _acceptance_table(settings: Sequence[Setting]) -> Table:
    rows, firsts = [], []
    for setting in settings:
        firsts.append(len(rows))
        for group in (setting.all, *(setting.groups if len(setting.groups) > 1 else ())):
            shares = [_percent(depth, 0).replace(" ", "") for depth in group.depths]
            lines = ["  ".join(shares[at : at + _IN_A_LINE]) for at in range(0, len(shares), _IN_A_LINE)]
            depths = "\n".join(lines) or "–"
            numbers = (str(len(group.acceptances)), f"{group.total.emitted:,}", group.tau.text())
            rows.append((setting.tree, f"{setting.temperature:g}", group.name, *numbers, depths))
    columns = ("tree", "T", "prompts of", "prompts", "tokens", "τ", "accepted at depth 1, 2, …, %")
    note = "τ: tokens per step, the bonus token included; at each depth, of the steps that got there."
    one_group = () if any(len(setting.groups) > 1 for setting in settings) else ("prompts of",)
    return Table(
        "Acceptance",
        columns,
        rows,
        note,
        words=3,
        strong=firsts,
        sections=firsts[1:],
        optional=("prompts", "tokens", *one_group),
    )


def _weakness_table(settings: Sequence[Setting]) -> Table:
    note = "% of the new tokens that the draft gave, and their number; the target itself gave the others."
    names = [f"{Path(setting.tree).name}, T {setting.temperature:g}" for setting in settings]
    cells = [
        {share.kind: f"{_percent(share.share)} of {share.emitted:,}" for share in setting.kinds}
        for setting in settings
    ]
    kinds = dict.fromkeys(kind for column in cells for kind in column)
    rows = [[kind, *(column.get(kind, "–") for column in cells)] for kind in kinds]
    return Table("Where the draft is weak", ("new tokens", *names), rows, note)


def _percent(share: Estimate, digits: int = 1) -> str:
    return share.scaled(100).text(digits)
