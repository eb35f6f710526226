"""The benchmark from its options to the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import product

from rich.console import Console

from clover.bench.ceilings import Limits, measure_limits
from clover.bench.context import CONTEXTS, context_table, draw_context, make_target, measure_context
from clover.bench.memory import cuda_peak, resident_peaks
from clover.bench.methods import method_names
from clover.bench.metrics import Metrics, metrics_of
from clover.bench.options import BenchOptions
from clover.bench.report import make_report
from clover.bench.setup import Bench
from clover.errors import UserError
from clover.interleaved import interleave
from clover.options import command_line
from clover.report.figure import Picture
from clover.report.output import Report, check_outputs, publish
from clover.report.progress import Progress
from clover.report.provenance import Provenance

_CONTEXT_TITLE = "Cost of a decoding step against the context"


def run_bench(options: BenchOptions, console: Console | None = None, errors: Console | None = None) -> Report:
    """Measure, print the tables, and write the JSON lines, the picture and the page.

    Args:
        console, errors: for the report and for the progress; standard output and error when left out.

    Raises:
        UserError: an option, a file or a model cannot be used; before anything is measured where possible.
    """
    if options.target is not None and options.draft is None and not options.context:
        raise UserError("a target was given but no draft; give its draft, or --draft lookup")
    check_outputs(options.json, options.picture, options.html)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        report = _run_context(options, progress) if options.context else _run_methods(options, progress)
    publish(report, console, options.json, options.picture, options.html)
    return report


def _run_context(options: BenchOptions, progress: Progress) -> Report:
    target = make_target(options.device, options.dtype, CONTEXTS[-1])
    curves = measure_context(target, options.rounds, progress, CONTEXTS)
    origin = Provenance.here(command_line("bench", options, "target"), target.device, target.dtype)
    model = f"Llama, {target.num_layers} layers, width {target.hidden_size}, random weights"
    return Report(
        _CONTEXT_TITLE,
        origin,
        [("target", model), ("run", f"{options.rounds} rounds in turn; medians")],
        [context_table(curves)],
        [Picture(_CONTEXT_TITLE, lambda: draw_context(curves, _CONTEXT_TITLE, model, origin.line))],
        [asdict(curve) | {"model": model} for curve in curves],
        [(f"line of {curve.method}", curve.words) for curve in curves],
    )


def _run_methods(options: BenchOptions, progress: Progress) -> Report:
    bench = Bench(options, method_names(options.trees, not options.no_reference, bool(options.assistant)))
    progress.say("ceilings of the device")
    limits = measure_limits(bench.target)
    settings = list(product(options.batch_sizes, options.temperatures))
    # On a CPU the compiler itself would be most of what the measuring process takes.
    no_memory = options.no_memory or (options.compile and bench.target.device.type == "cpu")
    peaks = {} if no_memory else _peaks(bench, progress)
    texts = {size: -(-len(bench.prompts) // size) * size for size in options.batch_sizes}
    progress.begin(sum(texts[size] for size, _ in settings))
    found = []
    for size, temperature in settings:
        told = progress.part(texts[size], f"batch {size}, temperature {temperature:g}")
        found += _run_setting(bench, size, temperature, limits, peaks.get(size, {}), told)
    return _report(bench, found, limits)


def _run_setting(
    bench: Bench,
    size: int,
    temperature: float,
    limits: Limits,
    peaks: dict[str, int],
    told: Callable[[float], None],
) -> list[Metrics]:
    able = [one for one in bench.methods if one.refusal(size) is None]
    batches = bench.batches(size, temperature)
    runs = interleave({one.name: one.decode for one in able}, batches, bench.options.rounds, told)
    return metrics_of(able, runs, batches[0], limits, peaks)


def _peaks(bench: Bench, progress: Progress) -> dict[int, dict[str, int]]:
    """Peak bytes by batch size and method."""
    found: dict[int, dict[str, int]] = {size: {} for size in bench.options.batch_sizes}
    for one in bench.methods:
        progress.say(f"peak memory of {one.label}")
        sizes = [size for size in found if one.refusal(size) is None]
        if bench.target.device.type == "cuda":
            drafts = (other.engine.draft for other in bench.methods if other.engine and other is not one)
            unused = [draft for draft in drafts if draft is not None]
            peaks = {size: cuda_peak(one, bench.batches(size, 0.0)[0], unused) for size in sizes}
        else:
            peaks = resident_peaks(one.name, bench.options, sizes)
        for size, peak in peaks.items():
            found[size][one.name] = peak
    return found


def _report(bench: Bench, found: list[Metrics], limits: Limits) -> Report:
    options = bench.options
    models = {"target": options.target or "embedded", "draft": options.draft or "embedded"}
    counts = {"prompts": len(bench.prompts), "max_new_tokens": options.max_new_tokens}
    refused = [
        (one.label, f"batch {size}: {reason}")
        for size, one in product(options.batch_sizes, bench.methods)
        if (reason := one.refusal(size)) is not None
    ]
    return make_report(
        "Speed-up against plain decoding",
        Provenance.here(command_line("bench", options, "target"), bench.target.device, bench.target.dtype),
        [*models.items(), limits.fact],
        f"{len(bench.prompts)} prompts, {options.max_new_tokens} new tokens each at most, {options.rounds} rounds "
        "in turn after a warm-up",
        found,
        [asdict(one) | models | counts | {"limits": asdict(limits)} for one in found],
        refused,
    )
