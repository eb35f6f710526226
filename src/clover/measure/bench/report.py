"""The benchmark's tables and picture, which the demo shows, too."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure

from clover.measure.bench.metrics import Metrics
from clover.measure.report import figure as art
from clover.measure.report.output import Report
from clover.measure.report.provenance import Provenance
from clover.measure.report.statistics import Estimate
from clover.measure.report.table import Table
from clover.measure.report.words import mode, percent, times

_PANELS = 3  # side by side
_PHASES = ("draft", "verify", "accept", "keep", "other", "total")
Cell = Callable[[Metrics], str]


def speed_table(found: Sequence[Metrics]) -> Table:
    """A row per method and setting; columns that say nothing about any of them are left out."""
    columns: dict[str, Cell] = {
        "method": lambda one: one.label,
        "batch": lambda one: str(one.batch_size),
        "T": lambda one: f"{one.temperature:g}",
        "tokens/s": lambda one: f"{one.tokens_per_second:.1f}",
        "speed-up": lambda one: Estimate(one.speedup, one.speedup_error or None).text() + "×",
        "τ": lambda one: Estimate(one.tau, one.tau_error or None).text(),
        "ideal": lambda one: times(one.ideal_speedup),
        "of ideal": lambda one: percent(one.ideal_share),
        "draft": _draft_share,
        "peak MiB": lambda one: f"{one.peak_memory_bytes / 2**20:,.0f}" if one.peak_memory_bytes else "–",
        "identical": _same,
    }
    cells = {name: [cell(one) for one in found] for name, cell in columns.items()}
    told = {name: values for name, values in cells.items() if set(values) != {"–"}}
    settings = [(one.batch_size, one.temperature) for one in found]
    optional = [name for name in ("of ideal", "draft", "ideal", "peak MiB") if name in told]
    if len(set(told["batch"])) == 1:  # the card says it
        optional.insert(0, "batch")
    return Table(
        "Speed",
        list(told),
        list(zip(*told.values(), strict=True)),
        "speed-up: against plain decoding of the same run, ± standard error over batches, at batch 1 over prompts; "
        "τ: tokens per step and text, ± over prompts",
        strong=[at for at, one in enumerate(found) if one.ideal_share is not None],
        sections=[at for at in range(1, len(found)) if settings[at] != settings[at - 1]],
        optional=optional,
    )


def step_table(found: Sequence[Metrics]) -> Table:
    """Where the time of a decoding step goes, of the methods whose steps are ours."""
    rows = [
        (
            one.label,
            str(one.batch_size),
            f"{one.temperature:g}",
            *(f"{one.step_milliseconds[phase]:.2f}" for phase in _PHASES),
            percent(one.bandwidth_share),
            percent(one.arithmetic_share),
        )
        for one in found
        if one.step_milliseconds is not None
    ]
    columns = ("method", "batch", "T", *_PHASES, "bandwidth", "arithmetic")
    return Table("A decoding step, ms", columns, rows, optional=["keep", "accept", "arithmetic"])


def make_report(
    title: str,
    origin: Provenance,
    facts: Sequence[tuple[str, str]],
    run: str,
    found: Sequence[Metrics],
    data: Any,
    notes: Iterable[tuple[str, str]] = (),
) -> Report:
    """The report of a benchmark, and of the demo: `facts` with the target first, `run` what was decoded, in words."""
    meanings = [("ideal", "τ · plain step / verify step: as if drafting and prefill took no time")]
    tables = [speed_table(found)]
    if any(one.bandwidth_share is not None for one in found):
        tables.append(step_table(found))
        least = "the time for {} at the measured speed, divided by the step's"
        meanings.append(("bandwidth", least.format("reading the weights once")))
        meanings.append(("arithmetic", least.format("the matrix products")))
    meanings.append(("identical", "token by token the texts of plain decoding; – where they need not be"))
    picture = art.Picture(title, lambda: draw(found, title, f"target {facts[0][1]}; {run}", origin.line))
    return Report(title, origin, [*facts, ("run", run)], tables, [picture], data, [*meanings, *notes])


def draw(found: Sequence[Metrics], title: str, subtitle: str, foot: str) -> Figure:
    """Bars of the speed-up, a panel per batch size and temperature, and lines of the acceptance per depth."""
    settings = list(dict.fromkeys((one.batch_size, one.temperature) for one in found))
    methods = list(dict.fromkeys((one.method, one.label) for one in found))
    first = [one for one in found if (one.batch_size, one.temperature) == settings[0]]
    drafted = [one for one in first if one.acceptance_per_depth]
    panels = len(settings) + bool(drafted)
    columns = min(panels, _PANELS)
    rows = -(-panels // columns)
    height = 1.6 + rows * max(0.42 * len(methods) + 0.9, 2.6)
    figure = art.new_figure(2.2 + 3.6 * columns, height, title, subtitle, foot)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[panels:]:
        axes.set_visible(False)
    most = max(max(one.speedup, one.ideal_speedup or 0) for one in found)
    for number, (axes, setting) in enumerate(zip(grid.flat, settings, strict=False)):
        shown = {one.method: one for one in found if (one.batch_size, one.temperature) == setting}
        _draw_setting(axes, methods, shown, most)
        batch = f"batch {setting[0]}, " if len({size for size, _ in settings}) > 1 else ""
        art.finish(axes, f"Speed-up, {batch}{mode(setting[1])}", "x", room=1.0)
        axes.tick_params(axis="y", labelleft=number % columns == 0)
    if drafted:
        _draw_depths(grid.flat[panels - 1], methods, drafted)
        art.legend_below(figure, grid.flat[panels - 1])
    return figure


def _draw_setting(axes: Any, methods: list[tuple[str, str]], found: dict[str, Metrics], most: float) -> None:
    """A bar per method with its error, in the outline of the ideal."""
    for place, (name, _) in enumerate(methods):
        one = found.get(name)
        if one is None:
            art.note(axes, 0, place, "not able")
            continue
        colour = art.system_colour(name, place)
        outline: Any = {"facecolor": "none", "edgecolor": colour, "linestyle": (0, (3, 2))}
        if one.ideal_speedup is not None:
            axes.barh(place, one.ideal_speedup, 0.7, **outline)
        axes.barh(place, one.speedup, 0.7, color=colour)
        error = one.speedup_error or 0.0
        axes.errorbar(one.speedup, place, xerr=error, color=art.INK, linewidth=1, capsize=2)
        end = max(one.speedup + error, one.ideal_speedup or 0.0)
        tau = f", τ {one.tau:.2f}" if one.acceptance_per_depth else ""
        art.note(axes, end, place, f"{one.speedup:.2f}×{tau}\n{one.tokens_per_second:.0f} tokens/s")
    axes.axvline(1.0, color=art.INK, linewidth=0.9, linestyle=":")
    axes.set_xlim(0, 1.75 * most)
    art.named_bars(axes, [label for _, label in methods])
    axes.set_xlabel("dashed outline: a draft that costs nothing")


def _draw_depths(axes: Any, methods: list[tuple[str, str]], drafted: Sequence[Metrics]) -> None:
    """A line per method, of one setting."""
    for one in drafted:
        place = methods.index((one.method, one.label))
        depths = range(1, len(one.acceptance_per_depth) + 1)
        shares = [100 * share for share in one.acceptance_per_depth]
        style = art.line_style(place) | {"linestyle": "-", "color": art.system_colour(one.method, place)}
        axes.plot(depths, shares, label=one.label, **style)
    axes.set_xlabel("depth in the token tree, of the steps that got there")
    axes.set_ylim(0, 100)
    axes.xaxis.get_major_locator().set_params(integer=True)
    art.finish(axes, f"Accepted, %, {mode(drafted[0].temperature)}", room=1.0)


def _draft_share(one: Metrics) -> str:
    steps = one.step_milliseconds
    return "–" if one.ideal_share is None or steps is None else percent(steps["draft"] / steps["total"])


def _same(one: Metrics) -> str:
    if one.identical is None:
        return "–"
    return "yes" if one.identical else f"{one.identical_texts} of {one.texts}"
