"""The demo from its options to the report."""

from __future__ import annotations

import datetime
import io
import sys
import time

from rich.console import Console

from clover.api import Clover, load
from clover.demo.live import View, choose_view
from clover.demo.measure import Bench, Round
from clover.demo.options import DemoOptions
from clover.demo.picture import save_picture
from clover.demo.report import Report, find_differences, summarize
from clover.demo.table import print_report
from clover.files import write_json
from clover.provenance import machine, versions

TIME_LIMIT = 105.0  # seconds for everything up to the table
MIN_TOKENS, MAX_TOKENS = 16, 128
_EMBEDDED = "embedded"


def run_demo(options: DemoOptions, console: Console | None = None) -> Report:
    """Measure, show, and write the picture and the JSON file.

    Args:
        options: what to run.
        console: where to show it; standard output when left out.

    Raises:
        UserError: an option, a file or a model cannot be used; raised before anything is measured where possible.
    """
    started = time.perf_counter()
    console = console or _console()
    options.check_outputs()
    prompts = options.read_prompts()
    view = choose_view(console, len(prompts), options.quiet)
    with view:
        view.say("loading target and draft")
        model = load(
            options.target, options.draft, method="draft", tree=options.tree, dtype=options.dtype,
            device=options.device, trust_remote_code=options.trust_remote_code,
        )  # fmt: skip
        bench = Bench(model, prompts, options.temperature)
        view.say("warming up")
        tokens, rounds = _measure(bench, options.max_new_tokens, started + TIME_LIMIT, view)
    report = _report(options, model, bench, rounds, tokens, time.perf_counter() - started)
    if options.json is not None:
        write_json(options.json, report.to_dict())
    print_report(console, report)
    save_picture(report, options.picture)
    for path in (options.picture, options.json):
        if path is not None:
            console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    return report


def _console() -> Console:
    # A log in an old encoding gets "?" for τ rather than an error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console()


def _measure(bench: Bench, tokens: int | None, deadline: float, view: View) -> tuple[int, list[Round]]:
    """Run all rounds, prompt by prompt; without a number of tokens, as many of both as the time allows."""
    cost = bench.seconds_per_token()
    in_time = tokens is None
    if tokens is None:
        affordable = 0.9 * (deadline - time.perf_counter()) / (cost * len(bench.prompts))
        tokens = max(MIN_TOKENS, min(MAX_TOKENS, int(affordable)))
    rounds: list[Round] = []
    longest = 0.0
    for number in range(len(bench.prompts)):
        started = time.perf_counter()
        if in_time and rounds and started + longest > deadline:
            break
        for temperature in bench.temperatures:
            rounds.append(bench.round(number, temperature, tokens, view.show))
            view.finished(rounds[-1])
        longest = max(longest, time.perf_counter() - started)
    return tokens, rounds


def _report(
    options: DemoOptions, model: Clover, bench: Bench, rounds: list[Round], tokens: int, seconds: float
) -> Report:
    drafter = model.engine.drafter
    assert drafter is not None
    done = len({r.number for r in rounds})
    return Report(
        device=model.target.device.type,
        dtype=str(model.target.dtype).removeprefix("torch."),
        target=options.target or _EMBEDDED,
        draft=options.draft or _EMBEDDED,
        methods=summarize(rounds),
        versions=versions(),
        command=options.command,
        machine=machine(model.target.device),
        date=datetime.date.today().isoformat(),
        tree_nodes=drafter.max_nodes - 1,
        prompts=done,
        max_new_tokens=tokens,
        seconds=seconds,
        differences=find_differences(model.target, rounds),
        out_of_time=len(bench.prompts) - done,
    )
