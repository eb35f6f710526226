"""What `clover cost` tells: the τ that a speed-up takes, and the tokens after which a training has paid for itself."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from clover.measure.cost.breakeven import TrainingCost
from clover.measure.cost.steps import TreeCost
from clover.measure.report.table import Table
from clover.measure.report.words import count, times
from clover.measure.tune.report import tree_label

SPEEDUPS = (1.0, 1.5, 2.0)


def tau_table(costs: Sequence[TreeCost], taus: Sequence[float]) -> Table:
    """The τ that each speed-up takes, and the speed-up at each τ that was asked for."""
    rows, sections = list[tuple[str, ...]](), list[int]()
    for size, some in groupby(costs, lambda one: one.plain.batch_size):
        sections.append(len(rows))
        for place, one in enumerate(some):
            first = (str(size), f"{1e3 * one.plain.step:.1f}") if place == 0 else ("", "")
            needed = ["–" if (tau := one.tau(gain)) is None else f"{tau:.2f}" for gain in SPEEDUPS]
            given = [times(one.speedup(tau) if tau <= one.depth + 1 else None) for tau in taus]
            step = f"{1e3 * one.step(1 + one.depth / 2):.1f}"
            rows.append((first[0], tree_label(one.tree), first[1], step, *needed, *given))
    columns = ["batch", "tree", "plain\nstep, ms", "step,\nms"]
    columns += [f"τ for\n{speedup:.1f}×" for speedup in SPEEDUPS]
    columns += [f"at τ {tau:g}" for tau in taus]
    note = f"τ: tokens per step and text; texts of {costs[0].plain.new_tokens} new tokens, prompts included"
    return Table("What τ must be", columns, rows, note, words=2, sections=sections)


def break_even_table(costs: Sequence[TreeCost], training: TrainingCost, taus: Sequence[float]) -> Table:
    """Of the last tree of each batch size."""
    rows = []
    for one in {one.plain.batch_size: one for one in costs}.values():
        paid = (_paid(one, training, tau) for tau in taus)
        rows.append((str(one.plain.batch_size), tree_label(one.tree), *paid))
    columns = ("batch", "tree", *(f"at τ {tau:g}" for tau in taus))
    return Table("Tokens after which the training has paid for itself", columns, rows, words=2)


def as_data(one: TreeCost, training: TrainingCost | None, taus: Sequence[float]) -> dict[str, Any]:
    """All numbers of a tree as JSON values."""
    known = [tau for tau in taus if tau <= one.depth + 1]
    paying = {f"{tau:g}": _paying_tokens(one, training, tau) for tau in known} if training else {}
    return asdict(one) | {
        "tau_for": {f"{speedup:g}": one.tau(speedup) for speedup in SPEEDUPS},
        "speedup_at": {f"{tau:g}": one.speedup(tau) for tau in known},
        "paying_tokens_at": paying,
    }


def _paid(one: TreeCost, training: TrainingCost, tau: float) -> str:
    """In words; "–" where the tree cannot give τ."""
    if tau > one.depth + 1:
        return "–"
    tokens = _paying_tokens(one, training, tau)
    return "never" if tokens is None else count(tokens)


def _paying_tokens(one: TreeCost, training: TrainingCost, tau: float) -> float | None:
    return training.paying_tokens(one.plain.token_seconds, one.speedup(tau))
