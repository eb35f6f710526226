"""The benchmark from its options to the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from rich.console import Console

from clover import assets
from clover.api import find_tuning
from clover.bench.ceilings import Ceilings, StepWork, measure_ceilings, step_work
from clover.bench.context import CONTEXTS, measure_context
from clover.bench.figures import Figures, Measured, figures, step_times
from clover.bench.memory import MemoryJob, cuda_peak, resident_peaks
from clover.bench.methods import Contender, load_assistant, make_contender, method_names
from clover.bench.options import BenchOptions
from clover.bench.picture import save_context_picture, save_picture
from clover.bench.report import ContextReport, Origin, Refusal, Report, where_it_ran, write_lines
from clover.bench.table import print_context, print_report
from clover.data.tasks import read_prompts
from clover.drafting import ConfidentDrafter, FixedPolicy
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.evaluate.progress import EvaluationProgress
from clover.interleaved import decode, interleave, make_batches
from clover.target import TargetModel

_HELD_OUT = "held_out_prompts"


def run_bench(
    options: BenchOptions, console: Console | None = None, errors: Console | None = None
) -> Report | ContextReport:
    """Measure, print the table, and write the JSON lines and the picture.

    Args:
        console: for the table; standard output when left out.
        errors: for the progress; standard error when left out.

    Raises:
        UserError: an option, a file or a model cannot be used; raised before anything is measured where possible.
    """
    console, errors = console or Console(), errors or Console(stderr=True)
    options.check()
    report = _run_context(options, errors) if options.context else _run_methods(options, errors)
    if options.json is not None:
        write_lines(options.json, report)
    if isinstance(report, ContextReport):
        print_context(console, report)
    else:
        print_report(console, report)
    if options.picture is not None:
        if isinstance(report, ContextReport):
            save_context_picture(report, options.picture)
        else:
            save_picture(report, options.picture)
    for path in (options.json, options.picture):
        if path is not None:
            console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    return report


def _run_context(options: BenchOptions, errors: Console) -> ContextReport:
    with EvaluationProgress(errors) as progress:
        curves = measure_context(options.device, options.dtype, options.rounds, progress, CONTEXTS)
    origin = where_it_ran(options, curves.device, curves.dtype, curves.model, "Clover-2, untrained")
    return ContextReport(origin, curves.curves)


def _run_methods(options: BenchOptions, errors: Console) -> Report:
    with EvaluationProgress(errors) as progress:
        progress.say("loading target and draft")
        bench = _Bench(options, progress)
        return bench.run()


@dataclass(frozen=True)
class _Setting:
    batch_size: int
    temperature: float


class _Bench:
    """The models, the prompts and the methods of one run."""

    def __init__(self, options: BenchOptions, progress: EvaluationProgress):
        if options.target is not None and options.draft is None:
            raise UserError("a target was given but no draft; give its draft, or --draft lookup")
        self.options, self.progress = options, progress
        self.target = TargetModel.load(
            options.target or str(assets.TARGET),
            dtype=options.dtype,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
        )
        self.draft: DraftModel = load_draft(options.draft or str(assets.DRAFT), self.target)
        assistant: Any = None
        if options.assistant is not None:
            assistant = load_assistant(options.assistant, self.target, options.trust_remote_code)
        names = method_names(options.trees, not options.no_reference, options.assistant is not None)
        tuning = find_tuning(options.draft or assets.DRAFT, self.target)
        self.contenders = [
            make_contender(name, self.target, self.draft, assistant, tuning, options.compile)
            for name in names
        ]
        self.prompts = _read_prompts(options, self.target)

    def run(self) -> Report:
        """Measure everything."""
        options = self.options
        pairs = product(options.batch_sizes, options.temperatures)
        settings = [_Setting(size, temperature) for size, temperature in pairs]
        rows = {s: -(-len(self.prompts) // s.batch_size) * s.batch_size for s in settings}
        self.progress.say("ceilings of the device")
        work = step_work(self.target)
        ceilings = measure_ceilings(self.target.device, self.target.dtype, work.weight_bytes)
        # On a CPU the compiler itself would be most of what the measuring process takes.
        no_memory = options.no_memory or (options.compile and self.target.device.type == "cpu")
        peaks = {} if no_memory else self._peaks()
        self.progress.begin(sum(rows.values()) * options.rounds)
        found: list[Figures] = []
        for setting in settings:
            found += self._setting(setting, rows[setting] * options.rounds, work, ceilings, peaks)
        refusals = [
            Refusal(contender.name, size, reason)
            for size in options.batch_sizes
            for contender in self.contenders
            if (reason := contender.refusal(size)) is not None
        ]
        return Report(
            self._origin(), work, ceilings, len(self.prompts), options.max_new_tokens, found, refusals
        )

    def _setting(
        self,
        setting: _Setting,
        rows: int,
        work: StepWork,
        ceilings: Ceilings,
        peaks: dict[tuple[str, int], int],
    ) -> list[Figures]:
        size, temperature = setting.batch_size, setting.temperature
        able = [one for one in self.contenders if one.refusal(size) is None]
        self.progress.say(f"batch {size}, temperature {temperature:g}")
        batches = self._batches(size, temperature)
        runs = interleave(
            {one.name: one.decode for one in able}, batches, self.options.rounds, self._share(rows)
        )
        found = [self._measured(one, runs[one.name], batches[0], temperature) for one in able]
        return [
            figures(one, found[0], size, temperature, work, ceilings, peaks.get((one.method, size)))
            for one in found
        ]

    def _measured(
        self, one: Contender, rounds: Sequence[Any], batch: Sequence[Request], temperature: float
    ) -> Measured:
        steps, nodes = None, None
        if one.engine is not None:
            nodes = _nodes(one.engine)
            runs = [run for part in rounds for run in part]
            if (
                self.target.device.type == "cuda"
            ):  # a phase's time is known only where the device is waited for
                runs = [decode(one.engine, batch, synchronize=True)]
            steps = step_times(runs)
        return Measured(one.name, rounds, steps, nodes, one.drafts, one.comparable(temperature))

    def _batches(self, size: int, temperature: float) -> list[list[Request]]:
        tokens = self.options.max_new_tokens
        return make_batches(self.prompts, size, temperature, tokens, self.target.context_length)

    def _share(self, rows: int) -> Callable[[float], None]:
        done = 0

        def show(share: float) -> None:
            nonlocal done
            self.progress.advance(round(share * rows) - done)
            done = round(share * rows)

        return show

    def _peaks(self) -> dict[tuple[str, int], int]:
        """Peak bytes by method and batch size."""
        found: dict[tuple[str, int], int] = {}
        for one in self.contenders:
            self.progress.say(f"peak memory of {one.name}")
            sizes = [size for size in self.options.batch_sizes if one.refusal(size) is None]
            for size, peak in self._peaks_of(one, sizes).items():
                found[one.name, size] = peak
        return found

    def _peaks_of(self, one: Contender, sizes: Sequence[int]) -> dict[int, int]:
        if not sizes:
            return {}
        if self.target.device.type == "cuda":
            unused = None if one.drafts else self.draft
            return {size: cuda_peak(one, self._batches(size, 0.0)[0], unused) for size in sizes}
        return resident_peaks(self._job(one, sizes))

    def _job(self, one: Contender, sizes: Sequence[int]) -> MemoryJob:
        options = self.options
        return MemoryJob(
            method=one.name,
            target=options.target or str(assets.TARGET),
            draft=options.draft or str(assets.DRAFT),
            assistant=options.assistant,
            dtype=options.dtype,
            trust_remote_code=options.trust_remote_code,
            threads=torch.get_num_threads(),
            prompts=tuple(request.prompt for request in self._batches(max(sizes), 0.0)[0]),
            batch_sizes=tuple(sizes),
            max_new_tokens=options.max_new_tokens,
        )

    def _origin(self) -> Origin:
        dtype = str(self.target.dtype).removeprefix("torch.")
        names = self.options.target or "embedded", self.options.draft or "embedded"
        return where_it_ran(self.options, self.target.device, dtype, *names)


def _nodes(engine: Engine) -> int | None:
    policy = engine.policy
    if isinstance(policy, FixedPolicy) and not isinstance(policy.drafter, ConfidentDrafter):
        return policy.max_nodes
    return None  # not the same at every step


def _read_prompts(options: BenchOptions, target: TargetModel) -> list[tuple[int, ...]]:
    """Prompts that leave room for all new tokens, so that every method writes the same number."""
    if target.tokenizer is None:
        raise UserError(f"the target {options.target} has no tokenizer, which prompts need")
    found = read_prompts([options.prompts or assets.HELD_OUT_PROMPTS], target.tokenizer)
    if options.prompts is None:
        found = [one for one in found if one.group == assets.HELD_OUT_PROMPTS.stem]
    room = target.context_length - options.max_new_tokens
    fitting = [one.tokens for one in found if len(one.tokens) <= room]
    if not fitting:
        raise UserError(
            f"no prompt leaves room for {options.max_new_tokens} new tokens in the target's context of "
            f"{target.context_length}; lower --max-new-tokens or give shorter prompts"
        )
    return fitting[: options.max_prompts]
