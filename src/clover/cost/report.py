"""What `clover cost` tells: the τ that a speed-up takes, and the tokens after which a training has paid for itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from clover.cost.breakeven import paying_tokens
from clover.cost.options import CostOptions
from clover.cost.record import TrainingRecord
from clover.cost.steps import TreeCost
from clover.report.output import Report
from clover.report.provenance import Provenance
from clover.report.table import Table
from clover.report.words import count, duration, system_name, times
from clover.tune.report import tree_label

SPEEDUPS = (1.0, 1.5, 2.0)
_TAUS = (2.0, 3.0, 4.0)  # of the break-even, where none were named


@dataclass(frozen=True)
class Found:
    """All that was measured.

    Args:
        system, parameters: the draft's.
        record: of the training of a draft that was named; None without one.
        costs: of each tree at each batch size; the draft's own tree comes last.
    """

    options: CostOptions
    origin: Provenance
    system: str
    parameters: int
    record: TrainingRecord | None
    costs: list[TreeCost]

    @property
    def training_seconds(self) -> float | None:
        """As given, or as recorded; None where neither is known."""
        if self.options.minutes is not None:
            return 60 * self.options.minutes
        return None if self.record is None else self.record.seconds

    def paying_tokens(self, cost: TreeCost, tau: float) -> float:
        """Generated tokens after which the training has paid for itself; infinite where nothing is faster."""
        assert self.training_seconds is not None
        speedup, ratio = cost.speedup(tau), self.options.prices.ratio
        return paying_tokens(self.training_seconds, cost.plain.token_seconds, speedup, ratio)


def make_report(found: Found) -> Report:
    """Tables and numbers."""
    plain = found.costs[0].plain
    tables = [_tau_table(found)]
    if found.training_seconds is not None:
        tables.append(_break_even_table(found))
    return Report(
        title=f"{system_name(found.system)}: the τ it needs on this machine",
        provenance=found.origin,
        facts=list(_facts(found)),
        tables=tables,
        data={
            "training_seconds": found.training_seconds,
            "trees": [_data(found, one) for one in found.costs],
        },
        notes=[
            (
                "speed-up",
                f"of texts of {plain.new_tokens} new tokens against plain decoding, prompts included",
            ),
            ("–", "beyond what the tree can give: its depth + 1"),
        ],
    )


def _facts(found: Found) -> Iterator[tuple[str, str]]:
    options, record = found.options, found.record
    yield "target", options.target or "embedded"
    weights = options.draft or "random weights"
    yield "draft", f"{system_name(found.system)}, {weights}, {count(found.parameters)} parameters"
    if record is not None:
        result, resources = record.result, record.resources
        yield (
            "was trained",
            f"{duration(record.seconds)}, {result.steps:,} steps, {count(result.tokens)} tokens",
        )
        if resources.peak_memory_bytes and resources.checkpoint_bytes:
            memory, disk = resources.peak_memory_bytes / 2**20, resources.checkpoint_bytes / 2**20
            yield "in", f"{memory:,.0f} MiB of memory at most, {disk:,.0f} MiB of checkpoint"
    if found.training_seconds is not None:
        money = options.prices.money(found.training_seconds)
        paid = "" if money is None else f", {money:.2f} at {options.price:g} per hour"
        yield "training", duration(found.training_seconds) + paid


def _tau_table(found: Found) -> Table:
    taus = found.options.taus
    asked = [f"speed-up\nat τ {tau:g}" for tau in taus]
    columns = (
        "batch",
        "tree",
        "plain\nstep, ms",
        "step,\nms",
        *(f"τ for\n{s:.1f}×" for s in SPEEDUPS),
        *asked,
    )
    rows, sections = list[tuple[str, ...]](), list[int]()
    for size, costs in groupby(found.costs, lambda one: one.plain.batch_size):
        sections.append(len(rows))
        for place, one in enumerate(costs):
            step = one.fixed + one.per_token * (1 + one.depth / 2)
            needed = [_number(one.tau(speedup)) for speedup in SPEEDUPS]
            given = [times(one.speedup(tau) if tau <= one.depth + 1 else None) for tau in taus]
            start = (
                (str(size), tree_label(one.tree), f"{1e3 * one.plain.step:.1f}")
                if place == 0
                else ("", tree_label(one.tree), "")
            )
            rows.append((*start, f"{1e3 * step:.1f}", *needed, *given))
    return Table("What τ must be", columns, rows, "τ: tokens per step and text", words=2, sections=sections)


def _break_even_table(found: Found) -> Table:
    """Of the last tree of each batch size."""
    last = {one.plain.batch_size: one for one in found.costs}
    taus = found.options.taus or tuple(tau for tau in _TAUS if tau <= found.costs[-1].depth + 1)
    rows = []
    for size, one in last.items():
        paid = [found.paying_tokens(one, tau) if tau <= one.depth + 1 else math.inf for tau in taus]
        rows.append(
            (str(size), tree_label(one.tree), *("never" if math.isinf(n) else count(n) for n in paid))
        )
    columns = ("batch", "tree", *(f"at τ {tau:g}" for tau in taus))
    return Table("Tokens after which the training has paid for itself", columns, rows, words=2)


def _data(found: Found, one: TreeCost) -> dict[str, Any]:
    predicted = {f"{tau:g}": one.speedup(tau) for tau in found.options.taus if tau <= one.depth + 1}
    paying = {}
    if found.training_seconds is not None:
        paying = {tau: found.paying_tokens(one, float(tau)) for tau in predicted}
    return asdict(one) | {
        "tau_for": {f"{speedup:g}": one.tau(speedup) for speedup in SPEEDUPS},
        "speedup_at": predicted,
        "paying_tokens_at": {tau: None if math.isinf(n) else n for tau, n in paying.items()},
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
