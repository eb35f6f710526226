"""Make the tables and the picture of `clover bench` and `clover demo` from the metrics of their methods."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from clover.engine import STEP_PHASES
from clover.measure.report import figure as art
from clover.measure.report.output import Report
from clover.measure.report.provenance import Provenance
from clover.measure.report.statistics import Estimate
from clover.measure.report.table import Table
from clover.measure.report.words import mode, percent, rate, shortened, times
from clover.measure.speed import Metrics
from clover.measure.systems import system_color

_PANELS = 3  # side by side
_PHASES = (*STEP_PHASES, "other", "total")


def speed_table(found: Sequence[Metrics]) -> Table:
    """Return a table with a row per method and setting, without columns that are empty for all of them."""
    digits = 1 if min(one.tokens_per_second for one in found) >= 10 else 2
    columns: dict[str, Callable[[Metrics], str]] = {
        "method": lambda one: one.label,
        "batch": lambda one: str(one.batch_size),
        "T": lambda one: f"{one.temperature:g}",
        "tokens/s": lambda one: f"{one.tokens_per_second:.{digits}f}",
        "speed-up": lambda one: Estimate(one.speedup, one.speedup_error or None).text() + "×",
        "τ": lambda one: Estimate(one.tau, one.tau_error or None).text(),
        "ideal": lambda one: times(one.ideal_speedup),
        "of ideal": lambda one: percent(one.ideal_share),
        "draft": _draft_share,
        "peak MiB": lambda one: f"{one.peak_memory_bytes / 2**20:,.0f}" if one.peak_memory_bytes else "–",
        "identical": _identical,
    }
    kept = {name: cell for name, cell in columns.items() if {*map(cell, found)} != {"–"}}
    optional = [name for name in ("of ideal", "draft", "ideal", "peak MiB") if name in kept]
    if len({one.batch_size for one in found}) == 1:  # the card has it
        optional.insert(0, "batch")
    return Table.of(
        "Speed",
        found,
        kept,
        "speed-up: against plain decoding of the same run, ± standard error over batches, at batch 1 over prompts; "
        "τ: tokens per step and text, ± over prompts",
        group=_setting,
        strong=lambda one: one.ideal_share is not None,
        optional=optional,
    )


def step_table(found: Sequence[Metrics]) -> Table:
    """Return a table of the time of each phase of a decoding step, for methods on our engines."""
    columns: dict[str, Callable[[Metrics], str]] = {
        "method": lambda one: one.label,
        "batch": lambda one: str(one.batch_size),
        "T": lambda one: f"{one.temperature:g}",
    }
    columns |= {phase: partial(_milliseconds, phase) for phase in _PHASES}
    columns |= {
        "bandwidth": lambda one: percent(one.bandwidth_share),
        "arithmetic": lambda one: percent(one.arithmetic_share),
    }
    ours = [one for one in found if one.step_milliseconds is not None]
    return Table.of(
        "A decoding step, ms",
        ours,
        columns,
        strong=lambda one: False,
        optional=["keep", "verify", "arithmetic"],
    )


def make_speed_report(
    title: str,
    origin: Provenance,
    facts: Sequence[tuple[str, str]],
    run: str,
    found: Sequence[Metrics],
    data: Any,
    notes: Iterable[tuple[str, str]] = (),
    exact: bool = False,
) -> Report:
    """Return the report; `facts` start with the target, and `run` describes what was decoded.

    With `exact`, no text differs by rounding in any dtype.
    """
    meanings = [("ideal", "τ · plain step / verify step: as if drafting and prefill took no time")]
    tables = [speed_table(found)]
    if any(one.bandwidth_share is not None for one in found):
        tables.append(step_table(found))
        least = "the time for {} at the measured speed, divided by the step's"
        meanings.append(("bandwidth", least.format("reading the weights once")))
        meanings.append(("arithmetic", least.format("the matrix products")))
    same = "token by token the texts of plain decoding; – where they need not be"
    narrow = origin.dtype in ("bfloat16", "float16") and not exact
    if narrow and any(one.identical is False for one in found):
        same += f". {origin.dtype}: near-ties differ, --dtype float32 is exact"
    meanings.append(("identical", same))
    picture = partial(draw, found, title, f"target {facts[0][1]}; {run}", origin.line)
    return Report(title, origin, [*facts, ("run", run)], tables, data, [*meanings, *notes], picture)


def draw(found: Sequence[Metrics], title: str, *foot: str) -> Figure:
    """Draw a panel of speed-ups, as bars, per batch size and temperature; and a panel of the acceptance per depth."""
    settings = list(dict.fromkeys(map(_setting, found)))
    labels = {one.method: one.label for one in found}
    drafted = [one for one in found if _setting(one) == settings[0] and one.acceptance_per_depth]
    panels = len(settings) + bool(drafted)
    columns = min(panels, _PANELS)
    rows = -(-panels // columns)
    height = rows * max(0.42 * len(labels) + 0.9, 2.6)
    figure = art.new_figure(2.2 + 3.6 * columns, height, title, *foot)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[panels:]:
        axes.set_visible(False)
    for axes, (size, temperature) in zip(grid.flat, settings, strict=False):
        shown = [one for one in found if _setting(one) == (size, temperature)]
        _draw_setting(axes, list(labels), {one.method: one for one in shown})
        axes.set_title(f"Speed-up, batch {size}, {mode(temperature)}")
        axes.set_yticks(range(len(labels)), map(shortened, labels.values()))
        axes.set_xlim(0, 1.75 * max(max(one.speedup, one.ideal_speedup or 0) for one in found))
    for axes in grid[:, 1:].flat:
        axes.tick_params(axis="y", labelleft=False)
    if drafted:
        _draw_depths(grid.flat[panels - 1], list(labels), drafted)
    return figure


def _draw_setting(axes: Any, methods: list[str], found: dict[str, Metrics]) -> None:
    """Draw a bar with an error per method, inside the outline of the ideal speed-up."""
    for place, name in enumerate(methods):
        one = found.get(name)
        end, words = 0.0, "not able"
        if one is not None:
            color, error = system_color(name, place), one.speedup_error or 0.0
            outline: Any = {"facecolor": "none", "edgecolor": color, "linestyle": (0, (3, 2))}
            axes.barh(place, one.ideal_speedup or 0.0, 0.7, **outline)
            axes.barh(place, one.speedup, 0.7, color=color)
            axes.errorbar(one.speedup, place, xerr=error, color=art.INK, linewidth=1, capsize=2)
            end = max(one.speedup + error, one.ideal_speedup or 0.0)
            tau = f", τ {one.tau:.2f}" if one.acceptance_per_depth else ""
            words = f"{one.speedup:.2f}×{tau}\n{rate(one.tokens_per_second)} tokens/s"
        axes.annotate(words, (end, place), (5, 0), textcoords="offset points", fontsize=9, va="center")
    axes.axvline(1.0, color=art.INK, linewidth=0.9, linestyle=":")
    axes.grid(visible=False, axis="y")
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.set_xlabel("dashed outline: a draft that costs nothing")


def _draw_depths(axes: Any, methods: list[str], drafted: Sequence[Metrics]) -> None:
    """Draw a line per method, for one setting."""
    for one in drafted:
        place, depths = methods.index(one.method), range(1, len(one.acceptance_per_depth) + 1)
        shares = [100 * share for share in one.acceptance_per_depth]
        color, marker = system_color(one.method, place), art.MARKERS[place % len(art.MARKERS)]
        axes.plot(depths, shares, label=one.label, color=color, marker=marker, markersize=4.5)
    axes.set_xlabel("depth in the token tree, of the steps that got there")
    axes.set_ylim(0, 100)
    axes.tick_params(axis="y", labelleft=True)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(f"Accepted, %, {mode(drafted[0].temperature)}")
    axes.legend()


def _setting(one: Metrics) -> tuple[int, float]:
    return one.batch_size, one.temperature


def _milliseconds(phase: str, one: Metrics) -> str:
    assert one.step_milliseconds is not None
    return f"{one.step_milliseconds[phase]:.2f}"


def _draft_share(one: Metrics) -> str:
    steps = one.step_milliseconds
    return "–" if one.ideal_share is None or steps is None else percent(steps["draft"] / steps["total"])


def _identical(one: Metrics) -> str:
    if one.identical is None:
        return "–"
    return "yes" if one.identical else f"{one.identical_texts} of {one.texts}"
