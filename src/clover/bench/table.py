"""The benchmark's tables, with the card of where the figures come from."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clover.bench.context import Curve
from clover.bench.figures import Figures
from clover.bench.report import ContextReport, Origin, Report

_MIB = 2**20
_NARROW = 90  # columns


def print_report(console: Console, report: Report) -> None:
    """Print the card, a row per method and setting, and where a step's time goes."""
    console.print()
    console.print(_facts([*_card(report.origin), *_limits(report)]))
    console.print()
    narrow = console.width < _NARROW
    console.print(_speeds(report, narrow))
    console.print()
    console.print(_splits(report))
    console.print()
    console.print(_facts(_notes(report, narrow)))
    console.print()


def print_context(console: Console, report: ContextReport) -> None:
    """Print the cost of a step at each context, and the line through the points."""
    table = _table("tokens of context", *(f"{curve.method}, ms" for curve in report.curves))
    for row, context in enumerate(report.curves[0].contexts):
        table.add_row(f"{context:,}", *(f"{1e3 * curve.seconds[row]:.2f}" for curve in report.curves))
    lines = [(f"line of {curve.method}", linear(curve)) for curve in report.curves]
    console.print()
    console.print(_facts(_card(report.origin)))
    console.print()
    console.print(table)
    console.print()
    console.print(_facts(lines))
    console.print()


def linear(curve: Curve) -> str:
    """The fitted line in words.

    >>> linear(Curve("plain", (1000,), (0.003,), 1e-6, 0.002, 0.04))
    '2.00 ms + 1.000 ms per 1,000 tokens, off by 4 % at most'
    """
    base, slope = f"{1e3 * curve.intercept:.2f} ms", f"{1e6 * curve.slope:.3f} ms per 1,000 tokens"
    return f"{base} + {slope}, off by {100 * curve.deviation:.0f} % at most"


def _facts(rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, Text(text))
    return grid


def _card(origin: Origin) -> list[tuple[str, str]]:
    threads = f"{origin.threads} thread{'s' if origin.threads > 1 else ''}"
    return [
        ("target", origin.target),
        ("draft", origin.draft),
        ("device", f"{origin.device}, {origin.dtype} ({origin.machine}; PyTorch runs {threads})"),
        ("versions", ", ".join(f"{name} {version}" for name, version in origin.versions.items())),
        ("revision", origin.revision or "no checkout"),
        ("command", origin.command),
        ("date", origin.date),
    ]


def _limits(report: Report) -> Iterator[tuple[str, str]]:
    weights, flops, most = report.work.weight_bytes, report.work.flops_per_token, report.ceilings
    least = 1e3 * most.read_seconds(weights)
    yield (
        "ceilings",
        f"reads {most.bytes_per_second / 1e9:.1f} GB/s, multiplies {most.flops_per_second / 1e9:,.0f} Gflop/s; a step "
        f"reads {weights / 1e6:,.0f} MB of weights, {least:.2f} ms, and takes {flops / 1e6:,.0f} Mflop per token",
    )
    rounds = len(report.figures[0].rounds_speedup)
    yield (
        "run",
        f"{report.prompts} prompts, {report.max_new_tokens} new tokens each at most, {rounds} rounds in turn, after a "
        "warm-up; medians of the rounds, with the lowest and the highest",
    )


def _speeds(report: Report, narrow: bool) -> Table:
    names = [
        "method",
        "batch, T",
        "tokens/s",
        "speed-up",
        "τ",
        "of\nideal",
        "draft",
        "peak\nMiB",
        "identical",
    ]
    if not narrow:
        names.insert(4, "rounds")
    table, last = _table(*names), None
    for one in report.figures:
        if last not in (None, _setting(one)):
            table.add_section()
        last = _setting(one)
        cells = _cells(one)
        if not narrow:
            cells.insert(4, _spread(one))
        table.add_row(*cells, style="bold green" if one.ideal_share is not None else "")
    return table


def _cells(one: Figures) -> list[str]:
    return [
        one.method,
        _setting(one),
        f"{one.tokens_per_second:.1f}",
        f"{one.speedup:.2f}×",
        f"{one.tau:.2f}",
        _percent(one.ideal_share),
        _percent(one.draft_share),
        "–" if one.peak_memory_bytes is None else f"{one.peak_memory_bytes / _MIB:,.0f}",
        _same(one),
    ]


def _setting(one: Figures) -> str:
    return f"{one.batch_size}, {one.temperature:g}"


def _spread(one: Figures) -> str:
    return f"{min(one.rounds_speedup):.2f}–{max(one.rounds_speedup):.2f}"


def _same(one: Figures) -> str:
    if one.identical is None:
        return "–"
    return "yes" if one.identical else f"{one.identical_texts} of {one.texts}"


def _splits(report: Report) -> Table:
    phases = ("draft", "verify", "accept", "keep", "other", "total")
    table = _table("ms per step", "batch, T", *phases, "band-\nwidth", "arith-\nmetic")
    for one in report.figures:
        if one.step_milliseconds is not None:
            times = [f"{one.step_milliseconds[phase]:.2f}" for phase in phases]
            shares = _percent(one.bandwidth_share), _percent(one.arithmetic_share)
            table.add_row(one.method, _setting(one), *times, *shares)
    return table


def _notes(report: Report, narrow: bool) -> Iterator[tuple[str, str]]:
    yield "of ideal", "speed-up over τ · plain step / verify step, as if drafting and prefill took no time"
    yield (
        "bandwidth",
        "the time for reading the target's weights once at the measured speed, over the step's",
    )
    yield "arithmetic", "the time for the target's matrix products at the measured speed, over the step's"
    yield "identical", "texts are token by token those of our plain decoding; – where they need not be"
    for one in report.figures if narrow else ():
        if min(one.rounds_speedup) < max(one.rounds_speedup):
            yield "rounds", f"{one.method} ({_setting(one)}): speed-up {_spread(one)}"
    for refusal in report.refusals:
        yield refusal.method, f"batch {refusal.batch_size}: {refusal.reason}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", vertical="bottom", no_wrap=True)
    return table
