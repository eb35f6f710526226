"""Run a suite: text, trainings, measurements, accuracies; then the report.

The output directory gets `results.jsonl` and the report; the work directory keeps the text and the drafts. What
has a line in `results.jsonl` is not run again; what was interrupted is repeated, a training from its checkpoint on.
"""

from __future__ import annotations

import datetime
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from rich.console import Console

from clover import assets, provenance
from clover.compare.accuracy import measure_accuracy, written_texts
from clover.compare.measuring import Measurement, make_engines, measure
from clover.compare.plan import (
    AccuracyCell,
    Cell,
    MeasuringCell,
    Place,
    Plan,
    TextCell,
    TrainingCell,
    make_plan,
)
from clover.compare.progress import Display, Forecast
from clover.compare.report import write_report
from clover.compare.results import (
    Provenance,
    Record,
    Result,
    Text,
    append_record,
    drop_half_line,
    read_records,
)
from clover.compare.suite import EMBEDDED, Suite, Task, read_suite, with_own
from clover.compare.text import read_text, task_prompts, text_name, write_text
from clover.compare.training import new_draft, ready_draft, train_draft
from clover.data import Sample
from clover.errors import UserError
from clover.interleaved import make_batches
from clover.target import TargetModel


@dataclass(frozen=True)
class CompareOptions:
    """What the user of `clover compare` chooses.

    Args:
        suite: a TOML file, or the name of one of the package's suites.
        output: directory for results and report; `runs/<name of the suite>` when left out.
        work: directory for text and drafts, which suites on one target can share; `<output>.work` when left out.
        target, data, tasks: in place of the suite's; see `clover.compare.suite.with_own`.
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
        """The command line that chooses the same; of paths the last name only.

        >>> CompareOptions("suites/quick.toml", data=("/texts/a.jsonl",), device="cpu").command
        'clover compare suites/quick.toml --data a.jsonl --device cpu'
        """
        suite = self.suite if not Path(self.suite).is_absolute() else Path(self.suite).name
        words = ["clover", "compare", suite]
        if self.target:
            words += ["--target", Path(self.target).name]
        words += [word for file in self.data for word in ("--data", Path(file).name)]
        for name, _, file in (task.partition("=") for task in self.tasks):
            words += ["--task", f"{name}={Path(file).name}"]
        for name in ("device", "dtype"):
            if value := getattr(self, name):
                words += [f"--{name}", value]
        return shlex.join(words)


def run_compare(options: CompareOptions, console: Console | None = None) -> Path:
    """Run what has no result yet, and write the report; returns the output directory.

    Raises:
        UserError: the suite, a model or a file cannot be used; raised before the first cell where possible.
        KeyboardInterrupt: Ctrl-C; the report of what is there has been written.
    """
    console = console or Console(stderr=True)
    suite = with_own(read_suite(options.suite), options.target, options.data, options.tasks)
    output = options.output or Path("runs") / suite.name
    if not options.report_only:
        try:
            _Comparison(options, suite, output, console).run()
        except KeyboardInterrupt:
            _report(output, console)
            console.print("interrupted; the same command goes on from here", highlight=False)
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
        self.options, self.suite, self.console = options, suite, console
        self.results = output / "results.jsonl"
        self.work = options.work or output.with_name(output.name + ".work")
        drop_half_line(self.results)
        self.done = read_records(self.results) if self.results.exists() else []
        name = str(assets.TARGET) if suite.target == EMBEDDED else suite.target
        self.target = TargetModel.load(
            name, dtype=options.dtype, device=options.device, trust_remote_code=options.trust_remote_code
        )
        if self.target.tokenizer is None:
            raise UserError(f"the target {suite.target} has no tokenizer, which texts and prompts need")
        dtype = str(self.target.dtype).removeprefix("torch.")
        self.plan: Plan = make_plan(suite, Place(suite.target, self.target.device.type, dtype))
        self._texts: dict[str, list[Sample]] = {}

    def run(self) -> None:
        """Run the cells that have no result yet, each with one line of results at its end."""
        keys = {record.key for record in self.done}
        waiting = [cell for cell in self.plan.cells if cell.key not in keys]
        forecast = Forecast()
        for record in self.done:
            for cell in self.plan.cells:
                if cell.key == record.key:
                    forecast.learn(cell, record.seconds)
        self._announce(waiting)
        if waiting:
            self._check()
        with Display(self.console, waiting, forecast, len(self.plan.cells)) as display:
            for cell in waiting:
                started = time.monotonic()
                display.start(cell)
                result = self._run(cell, display)
                seconds = time.monotonic() - started
                record = Record(
                    cell.key,
                    cell.kind,
                    cell.label,
                    round(seconds, 3),
                    cell.config,
                    result,
                    self._provenance(),
                )
                append_record(self.results, record)
                display.finish(cell, seconds)

    def _announce(self, waiting: Sequence[Cell]) -> None:
        total = len(self.plan.cells)
        there = f", {total - len(waiting)} of them done" if len(waiting) < total else ""
        self.console.print(f"{self.suite.name}: {total} cells{there}", markup=False, highlight=False)
        foreign = {record.key for record in self.done} - {cell.key for cell in self.plan.cells}
        if foreign:
            self.console.print(
                f"{self.results} also holds {len(foreign)} results that the suite does not ask for any more; the "
                "report shows them, too",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip

    def _check(self) -> None:
        """Build every system with each of its trees, and read every task, before the first hour is spent."""
        seen = []
        for cell in self.plan.cells:
            for draft in cell.drafts if isinstance(cell, MeasuringCell) else ():
                built = (draft.kind, draft.options, draft.trees)
                if built not in seen:
                    seen.append(built)
                    make_engines(self.target, [(draft, new_draft(self.target, draft))])
        for task in self.suite.tasks:
            self._prompts(task)

    def _run(self, cell: Cell, display: Display) -> Result:
        if isinstance(cell, TextCell):
            return self._write_text(cell, display)
        if isinstance(cell, TrainingCell):
            folder = self._folder(cell.weights)
            return train_draft(self.target, cell, self._training_text, folder, self.console)
        if isinstance(cell, MeasuringCell):
            return self._measure(cell, display)
        assert isinstance(cell, AccuracyCell)
        draft = ready_draft(self.target, cell.draft, self._folder(self.plan.weights[cell.draft.method]))
        texts = self._accuracy_texts(cell.task)
        return measure_accuracy(self.target, draft, cell.draft.method, cell.task.name, texts)

    def _write_text(self, cell: TextCell, display: Display) -> Text:
        count = cell.options.texts
        samples = write_text(
            self.target, cell.options, self._text_path, lambda texts, tokens: display.share(texts / count)
        )
        tokens = sum(len(sample.tokens) for sample in samples)
        learnt = sum(int(sample.loss_mask.sum()) for sample in samples)
        return Text(len(samples), tokens, learnt, text_name(samples))

    def _measure(self, cell: MeasuringCell, display: Display) -> Measurement:
        drafts = [
            (d, ready_draft(self.target, d, self._folder(self.plan.weights.get(d.method, ""))))
            for d in cell.drafts
        ]
        options, prompts = self.suite.measuring, self._prompts(cell.task)
        batches = make_batches(
            prompts, cell.batch_size, cell.temperature, options.max_new_tokens, self.target.context_length
        )
        found = measure(make_engines(self.target, drafts), batches, options.rounds, display.share)
        return Measurement(cell.task.name, cell.batch_size, cell.temperature, len(prompts), tuple(found))

    def _prompts(self, task: Task) -> list[tuple[int, ...]]:
        return task_prompts(self.target, task, self.suite.measuring.prompts)

    def _accuracy_texts(self, task: Task) -> list[Sample]:
        if task.name not in self._texts:
            count = self.suite.measuring.max_new_tokens
            self._texts[task.name] = written_texts(self.target, self._prompts(task), count)
        return self._texts[task.name]

    @cached_property
    def _training_text(self) -> list[Sample]:
        return read_text(self.target, self.suite.text, self._text_path)

    @property
    def _text_path(self) -> Path:
        (cell,) = (cell for cell in self.plan.cells if isinstance(cell, TextCell))
        return self.work / f"text.{cell.key}.jsonl"

    def _folder(self, weights: str) -> Path:
        return self.work / "drafts" / weights

    def _provenance(self) -> Provenance:
        target, suite = self.target, self.suite
        return Provenance(
            suite=suite.name,
            suite_hash=suite.digest,
            title=suite.title,
            note=suite.note,
            target=suite.target,
            device=target.device.type,
            dtype=str(target.dtype).removeprefix("torch."),
            machine=provenance.machine(target.device),
            threads=torch.get_num_threads(),
            versions=provenance.versions(),
            revision=provenance.revision(),
            command=self.options.command,
            date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )
