"""Run a suite: text, trainings, measurements, accuracies; then the report.

The output directory gets `results.jsonl` and the report; the work directory keeps the text and the drafts. What
has a line in `results.jsonl` is not run again; what was interrupted is repeated, a training from its checkpoint on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from clover import assets
from clover.compare.measuring import make_engines, measure
from clover.compare.plan import Cell, Draft, Plan
from clover.compare.report import write_report
from clover.compare.results import (
    Accuracy,
    Measurement,
    Origin,
    Record,
    Result,
    Text,
    append_record,
    read_records,
)
from clover.compare.suite import EMBEDDED, Suite, read_suite
from clover.compare.text import read_text, task_prompts, write_text
from clover.compare.training import new_draft, ready_draft, train_draft
from clover.data import Batch, Sample, fingerprint
from clover.drafts import DraftModel
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.evaluate.accuracy import as_sample, measure_heads, text_batches
from clover.interleaved import decode, make_batches
from clover.options import command_line
from clover.report.progress import Progress
from clover.report.provenance import Provenance
from clover.report.words import duration
from clover.sampling import SamplingParams
from clover.target import TargetModel

_WRITTEN_TOGETHER = 32  # texts that the heads are measured on


@dataclass(frozen=True)
class CompareOptions:
    """What the user of `clover compare` chooses.

    Args:
        suite: a TOML file, or the name of one of the package's suites.
        output: directory for results and report; `runs/<name of the suite>` when left out.
        work: directory for text and drafts, which suites on one target can share; `<output>.work` when left out.
        target, data, tasks: in place of the suite's; see `clover.compare.suite.read_suite`.
        device, dtype: of the target; as `clover.load` chooses them when left out.
        report_only: draw the report from the results that are there; nothing is run.
    """

    suite: str
    output: Path | None = None
    work: Path | None = None
    target: str | None = None
    data: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    report_only: bool = False

    @property
    def command(self) -> str:
        """The command line that chooses the same.

        >>> CompareOptions("suites/quick.toml", data=("a.jsonl",), device="cpu").command
        'clover compare suites/quick.toml --data a.jsonl --device cpu'
        """
        return command_line("compare", self, files="suite")


def run_compare(options: CompareOptions, console: Console | None = None) -> Path:
    """Run what has no result yet, and write the report; returns the output directory.

    Raises:
        UserError: the suite, a model or a file cannot be used; raised before the first cell where possible.
        KeyboardInterrupt: Ctrl-C; the report of what is there has been written.
    """
    console = console or Console(stderr=True)
    suite = read_suite(options.suite, options.target, options.data, options.tasks)
    output = options.output or Path("runs") / suite.name
    try:
        if not options.report_only:
            _Comparison(options, suite, output, console).run()
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here", highlight=False)
        if (output / "results.jsonl").exists():
            _report(output, console)
        raise
    _report(output, console)
    return output


def _report(output: Path, console: Console) -> None:
    results = output / "results.jsonl"
    if not results.exists():
        raise UserError(f"there are no results in {output}; run the suite first")
    page = write_report(read_records(results), output)
    console.print(f"wrote {page}", markup=False, highlight=False, soft_wrap=True)


class _Comparison:
    """A suite with its target, where its files are, and what of it is done."""

    def __init__(self, options: CompareOptions, suite: Suite, output: Path, console: Console):
        self.options, self.suite = options, suite
        self.progress = Progress(console)
        self.results = output / "results.jsonl"
        self.work = options.work or output.with_name(output.name + ".work")
        self.done = read_records(self.results, mend=True) if self.results.exists() else []
        name = str(assets.TARGET) if suite.target == EMBEDDED else suite.target
        self.target = TargetModel.load(
            name, dtype=options.dtype, device=options.device, trust_remote_code=options.trust_remote_code
        )
        if self.target.tokenizer is None:
            raise UserError(f"the target {suite.target} has no tokenizer, which texts and prompts need")
        dtype = str(self.target.dtype).removeprefix("torch.")
        self.plan = Plan(suite, {"target": suite.target, "device": self.target.device.type, "dtype": dtype})

    def run(self) -> None:
        """Run the cells that have no result yet, each with one line of results at its end."""
        cells, keys = self.plan.cells, {record.key for record in self.done}
        waiting = [cell for cell in cells if cell.key not in keys]
        there = f", {len(cells) - len(waiting)} of them done" if len(waiting) < len(cells) else ""
        self.progress.log(f"{self.suite.name}: {len(cells)} cells{there}")
        if foreign := keys - {cell.key for cell in cells}:
            self.progress.log(
                f"{self.results} also holds {len(foreign)} results that the suite does not ask for any more; the "
                "report shows them, too"
            )
        if waiting:
            self._check()
        total = sum(cell.seconds for cell in cells)
        with self.progress as progress:
            progress.begin(total, total - sum(cell.seconds for cell in waiting))
            for number, cell in enumerate(waiting, len(cells) - len(waiting) + 1):
                seconds = self._finish(cell)
                if not progress.console.is_terminal:
                    progress.log(f"{number}/{len(cells)} {cell.label}: {duration(seconds)}")

    def _finish(self, cell: Cell) -> float:
        """Run a cell and keep its result; returns the seconds that it took."""
        reach = self.progress.done + cell.seconds
        started = time.monotonic()
        result = self._run(cell)
        seconds = time.monotonic() - started
        record = Record(
            cell.key, cell.kind, cell.label, round(seconds, 3), cell.config, result, self._origin()
        )
        append_record(self.results, record)
        self.progress.reach(reach)
        return seconds

    def _check(self) -> None:
        """Build every system with each of its trees, and read every task, before the first hour is spent."""
        built: list[tuple[object, ...]] = []
        for draft in self.plan.drafts:
            if (kind := (draft.system.system, draft.system.options, draft.trees)) not in built:
                built.append(kind)
                make_engines(self.target, [(draft, new_draft(self.target, draft))])
        for task in self.suite.tasks:
            largest = max(self.suite.measuring.batch_sizes)
            task_prompts(self.target, task, largest, largest)

    def _run(self, cell: Cell) -> Result:
        share = self.progress.part(cell.seconds, cell.label)
        if cell.kind == "text":
            count = self.suite.text.texts
            path = self._text_path
            samples = write_text(self.target, self.suite.text, path, lambda texts, _: share(texts / count))
            learnt = sum(int(sample.loss_mask.sum()) for sample in samples)
            return Text(len(samples), sum(len(one.tokens) for one in samples), learnt, fingerprint(samples))
        if cell.kind == "training":
            (draft,) = cell.drafts
            self.progress.log(cell.label)
            with self.progress.paused():  # a training has a bar of its own
                folder, console = self._folder(draft), self.progress.console
                return train_draft(self.target, self.suite, draft, self._training_text, folder, console)
        if cell.kind == "measuring":
            return self._measure(cell, share)
        (draft,) = cell.drafts
        return Accuracy(draft.method, measure_heads(self.target, self._ready(draft), self._written, share))

    def _measure(self, cell: Cell, share: Callable[[float], None]) -> Measurement:
        assert cell.task is not None
        options, size = self.suite.measuring, cell.batch_size
        prompts = task_prompts(self.target, cell.task, max(size, options.prompts // size * size))
        whole, context = prompts[: len(prompts) // size * size], self.target.context_length
        batches = make_batches(whole, size, cell.temperature, options.max_new_tokens, context)
        engines = make_engines(self.target, [(draft, self._ready(draft)) for draft in cell.drafts])
        found = measure(engines, batches, options.rounds, share)
        return Measurement(cell.task.name, size, cell.temperature, found)

    def _ready(self, draft: Draft) -> DraftModel:
        return ready_draft(self.target, draft, self._folder(draft))

    @cached_property
    def _written(self) -> list[Batch]:
        """What the target writes after the prompts of all tasks, greedily and sampled in turn."""
        options = self.suite.measuring
        prompts = [p for task in self.suite.tasks for p in task_prompts(self.target, task, options.prompts)]
        requests = [
            Request(
                prompt,
                min(options.max_new_tokens, self.target.context_length - len(prompt)),
                SamplingParams(temperature=float(i % 2), seed=i),
            )
            for i, prompt in enumerate(prompts)
        ]
        engine, texts = Engine(self.target), []
        for at in range(0, len(requests), _WRITTEN_TOGETHER):
            texts += decode(engine, requests[at : at + _WRITTEN_TOGETHER]).texts
        return text_batches(self.target, list(map(as_sample, prompts, texts)))

    @cached_property
    def _training_text(self) -> list[Sample]:
        return read_text(self.target, self.suite.text, self._text_path)

    @property
    def _text_path(self) -> Path:
        return self.work / f"text.{self.plan.text.key}.jsonl"

    def _folder(self, draft: Draft) -> Path:
        return self.work / "drafts" / self.plan.weights(draft)

    def _origin(self) -> Origin:
        suite, here = self.suite, Provenance.here(self.options.command, self.target.device, self.target.dtype)
        return Origin(suite.name, suite.digest, suite.title, suite.note, suite.target, here)
