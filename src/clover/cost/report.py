"""What `clover cost` tells: the τ that a speed-up takes, and the tokens after which a training has paid for itself."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from clover.cost.breakeven import paying_tokens
from clover.cost.options import CostOptions
from clover.cost.steps import TreeCost
from clover.report.output import Report
from clover.report.provenance import Provenance
from clover.report.table import Table
from clover.report.words import count, duration, system_name, times
from clover.tune.report import tree_label

SPEEDUPS = (1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Found:
    """All that was measured.

    Args:
        system, parameters: the draft's.
        training_seconds: as given or recorded; None where neither is known.
        costs: of each tree at each batch size; the draft's own tree comes last.
    """

    options: CostOptions
    origin: Provenance
    system: str
    parameters: int
    training_seconds: float | None
    costs: list[TreeCost]

    def paying_tokens(self, cost: TreeCost, tau: float) -> float | None:
        """Generated tokens after which the training has paid for itself; None where it never has."""
        assert self.training_seconds is not None
        speedup, ratio = cost.speedup(tau), self.options.prices.ratio
        tokens = paying_tokens(self.training_seconds, cost.plain.token_seconds, speedup, ratio)
        return None if math.isinf(tokens) else tokens


def make_report(found: Found) -> Report:
    """Tables and numbers."""
    options, seconds, tables = found.options, found.training_seconds, [_tau_table(found)]
    weights = options.draft or "random weights"
    facts = [
        ("target", options.target or "embedded"),
        ("draft", f"{system_name(found.system)}, {weights}, {count(found.parameters)} parameters"),
    ]
    if seconds is not None:
        money = options.prices.money(seconds)
        paid = "" if money is None else f", {money:.2f} at {options.price:g} per hour"
        facts.append(("training", duration(seconds) + paid))
        tables.append(_break_even_table(found))
    return Report(
        title=f"{system_name(found.system)}: the τ it needs on this machine",
        provenance=found.origin,
        facts=facts,
        tables=tables,
        data={"training_seconds": seconds, "trees": [_data(found, one) for one in found.costs]},
        notes=[("–", "more than the tree can give, its depth + 1")],
    )


def _tau_table(found: Found) -> Table:
    taus = found.options.taus
    rows, sections = list[tuple[str, ...]](), list[int]()
    for size, costs in groupby(found.costs, lambda one: one.plain.batch_size):
        sections.append(len(rows))
        for place, one in enumerate(costs):
            first = (str(size), f"{1e3 * one.plain.step:.1f}") if place == 0 else ("", "")
            needed = [_number(one.tau(speedup)) for speedup in SPEEDUPS]
            given = [times(one.speedup(tau) if tau <= one.depth + 1 else None) for tau in taus]
            step = f"{1e3 * (one.fixed + one.per_token * (1 + one.depth / 2)):.1f}"
            rows.append((first[0], tree_label(one.tree), first[1], step, *needed, *given))
    needed = [f"τ for\n{speedup:.1f}×" for speedup in SPEEDUPS]
    columns = ("batch", "tree", "plain\nstep, ms", "step,\nms", *needed, *(f"at τ {tau:g}" for tau in taus))
    note = f"τ: tokens per step and text; texts of {found.costs[0].plain.new_tokens} new tokens, prompts included"
    return Table("What τ must be", columns, rows, note, words=2, sections=sections)


def _break_even_table(found: Found) -> Table:
    """Of the last tree of each batch size."""
    taus, rows = found.options.taus or (2.0, 3.0, 4.0), []
    for one in {one.plain.batch_size: one for one in found.costs}.values():
        tokens = [found.paying_tokens(one, tau) if tau <= one.depth + 1 else None for tau in taus]
        paid = ("never" if number is None else count(number) for number in tokens)
        rows.append((str(one.plain.batch_size), tree_label(one.tree), *paid))
    columns = ("batch", "tree", *(f"at τ {tau:g}" for tau in taus))
    return Table("Tokens after which the training has paid for itself", columns, rows, words=2)


def _data(found: Found, one: TreeCost) -> dict[str, Any]:
    taus = [tau for tau in found.options.taus if tau <= one.depth + 1]
    known = [] if found.training_seconds is None else taus
    return asdict(one) | {
        "tau_for": {f"{speedup:g}": one.tau(speedup) for speedup in SPEEDUPS},
        "speedup_at": {f"{tau:g}": one.speedup(tau) for tau in taus},
        "paying_tokens_at": {f"{tau:g}": found.paying_tokens(one, tau) for tau in known},
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
