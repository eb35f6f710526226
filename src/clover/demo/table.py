"""The table at the end of the demo and the lines that explain it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clover.demo.live import mode
from clover.demo.report import MethodResult, Report

_NARROW = 100


def print_report(console: Console, report: Report) -> None:
    """Print what was measured on what, the table, and what the figures mean."""
    console.print()
    console.print(_facts(_card(report)))
    console.print()
    console.print(_table(report, console.width < _NARROW))
    console.print()
    console.print(_facts([_identity(report), *_ideals(report), *_spreads(report), *_notes(report)]))
    console.print()


def _facts(rows: list[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, text)
    return grid


def _card(report: Report) -> list[tuple[str, Text]]:
    run = f"{report.prompts} prompts, {report.max_new_tokens} new tokens each, batch 1, {report.seconds:.0f} s in all"
    return [
        ("target", Text(report.target)),
        ("draft", Text(f"{report.draft}, tree of {report.tree_nodes} nodes")),
        ("device", Text(f"{report.device}, {report.dtype} ({report.machine})")),
        ("run", Text(run)),
    ]


def _table(report: Report, narrow: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0) if narrow else (0, 1))
    depths = max((len(method.acceptance_per_depth) for method in report.methods), default=0)
    table.add_column("method", vertical="bottom")
    for name in ("T", "tokens/s", "τ", f"accepted at\ndepth 1–{depths}, %", "speed-up", "ideal", "of ideal"):
        table.add_column(name, justify="right", vertical="bottom")
    table.add_column("identical\noutput", justify="right", vertical="bottom")
    last = None
    for method in report.methods:
        if last not in (None, method.temperature):
            table.add_section()
        last = method.temperature
        table.add_row(*_cells(method), style="bold green" if method.drafted else "")
    return table


def _cells(method: MethodResult) -> list[str]:
    return [
        method.label,
        f"{method.temperature:g}",
        f"{method.tokens_per_second:.1f}",
        f"{method.tau:.2f}",
        " ".join(f"{100 * share:.0f}" for share in method.acceptance_per_depth) or "–",
        f"{method.speedup:.2f}×",
        "–" if method.ideal_speedup is None else f"{method.ideal_speedup:.2f}×",
        "–" if method.ideal_share is None else f"{100 * method.ideal_share:.0f} %",
        "baseline" if method.name == "plain" else _same(method),
    ]


def _same(method: MethodResult) -> str:
    return "yes" if method.identical else f"{method.identical_prompts} of {method.prompts}"


def _identity(report: Report) -> tuple[str, Text]:
    every = all(m.identical for m in report.drafted)
    parts = [f"{m.identical_prompts} of {m.prompts} {mode(m.temperature)} texts" for m in report.drafted]
    text = Text.assemble(
        ("yes" if every else "no", "bold green" if every else "bold red"), f", {' and '.join(parts)}"
    )
    for d in report.differences:
        gap = "one text ends there" if d.gap is None else f"the two tokens' logits are {d.gap:.2g} apart"
        text.append(f"\nprompt {d.prompt} parts at new token {d.position}: {gap}")
    if report.defect:
        text.append(f"\nrounding in {report.dtype} does not explain that: it is a defect", "bold red")
    elif not every:
        text.append(
            f"\n{report.dtype} rounds differently when more tokens run at once, so near-ties can flip"
        )
    return "identical output:", text


def _ideals(report: Report) -> Iterator[tuple[str, Text]]:
    yield "ideal speed-up:", Text("τ · plain step / verify step, as if drafting took no time")
    for m in report.drafted:
        plain, verify = 1000 * (m.plain_step_seconds or 0), 1000 * (m.verify_step_seconds or 0)
        yield (
            "",
            Text(
                f"{mode(m.temperature)}: {m.tau:.2f} · {plain:.2f} ms / {verify:.2f} ms = {m.ideal_speedup:.2f}×"
            ),
        )


def _spreads(report: Report) -> Iterator[tuple[str, Text]]:
    label = "speed-up by prompt:"
    for m in report.drafted:
        low, mid, high = min(m.speedup_per_prompt), median(m.speedup_per_prompt), max(m.speedup_per_prompt)
        yield label, Text(f"{mode(m.temperature)}: {low:.2f}× to {high:.2f}×, median {mid:.2f}×")
        label = ""


def _notes(report: Report) -> Iterator[tuple[str, Text]]:
    if report.out_of_time:
        total = report.prompts + report.out_of_time
        text = f"{report.out_of_time} of {total} prompts, to end within two minutes; --max-new-tokens lifts that limit"
        yield "left out:", Text(text, style="yellow")
