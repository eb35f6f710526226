"""Run a suite: trainings, then measurements, then the report.

The output directory gets `results.jsonl` and the report; the work directory keeps the text and the drafts. What
has a line in `results.jsonl` is not run again; what was interrupted is repeated, a training from its checkpoint on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

import torch
from rich.console import Console

from clover import assets
from clover.data import Sample
from clover.drafts import DraftModel, load_usable
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, Request
from clover.errors import UserError, is_out_of_memory
from clover.files import (
    append_lines,
    append_to_name,
    check_output_file,
    locked_directory,
    locked_file,
)
from clover.measure.comparison import measure_methods as measure_in_turn
from clover.measure.methods import Method as TimedMethod
from clover.measure.ranks import MAX_HEADS, HeadAccuracy, rank_texts
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.report.words import duration
from clover.measure.timing import make_batches, time_decoding
from clover.sampling import SamplingParams
from clover.target import TargetModel, weights_fingerprint
from clover.train import TrainConfig
from clover.train.record import RECORD_FILE, RecordedResult, read_record
from experiments.command import command_line
from experiments.compare.options import CompareOptions
from experiments.compare.plan import Cell, Draft, MethodKey, Plan, draft_is_there
from experiments.compare.report import publish_results, write_report
from experiments.compare.results import (
    Decoded,
    Measurement,
    Record,
    Trained,
    as_planned,
    read_records,
)
from experiments.compare.suite import EMBEDDED, Suite, read_suite
from experiments.compare.text import task_prompts, training_text
from experiments.recipes.drafts import finish_training

_WRITTEN_TOGETHER = 32  # texts that the heads are measured on


def run_compare(options: CompareOptions, console: Console | None = None) -> None:
    """Run what has no result yet, and write the report.

    UserError if the suite, a model or a file cannot be used, before the first cell where possible; if a cell fails,
    after the others. After Ctrl-C the report of what is there has been written.
    """
    console = console or Console(stderr=True)
    results, problem, plan = options.folder / "results.jsonl", None, None
    suite = None if options.report_only else read_suite(options)
    if suite is None and not results.exists():
        raise UserError(f"there are no results in {options.folder}; run the suite first")
    _check_outputs(options)
    try:
        if suite is not None:
            with locked_directory(_work_folder(options)), locked_file(results):
                comparison = Comparison(options, suite, console)
                plan = comparison.plan
                problem = comparison.run()
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here", highlight=False)
        if found := _records(results, plan):
            write_report(found, _page(options))
        raise
    records = _records(results, plan)
    if problem is not None and not records:
        raise UserError(problem)
    write_report(records, _page(options))
    if options.publish is not None:
        publish_results(records, _published(options))
    console.print(f"wrote {_page(options)}", markup=False, highlight=False, soft_wrap=True)
    if problem is not None:
        raise UserError(problem)


def _page(options: CompareOptions) -> Path:
    return options.folder / "report.md"


def _published(options: CompareOptions) -> Path:
    assert options.publish is not None
    return options.publish / f"{Path(options.suite_file).stem}.json"


def _records(results: Path, plan: Plan | None) -> list[Record]:
    """Return all results, if any; without a plan as they are in the file."""
    records = read_records(results) if results.exists() else []
    return records if plan is None else as_planned(records, plan)


def _check_outputs(options: CompareOptions) -> None:
    """Raise a UserError, before any time is spent, for what could not be written at the end."""
    for file in (options.folder / "results.jsonl", _page(options)):
        check_output_file(file)
    if options.publish is not None:
        if options.report_only and options.suite is None:
            raise UserError(
                f"name the suite of the results in {options.folder}; they are published by its name"
            )
        check_output_file(_published(options))


def _work_folder(options: CompareOptions) -> Path:
    return options.work or append_to_name(options.folder, ".work")


def _nameless(options: CompareOptions) -> CompareOptions:
    """Return the options with files and directories by their last names, as others repeat the command."""
    names = ("drafts", "prompts", "output", "work", "publish")
    given = {name: place for name in names if (place := getattr(options, name)) is not None}
    tasks = [task.partition("=") for task in options.tasks]
    return replace(
        options,
        suite=Path(options.suite_file).name,
        data=tuple(Path(file).name for file in options.data),
        tasks=tuple(f"{name}={Path(where).name}" for name, _, where in tasks),
        **{name: Path(place.name) for name, place in given.items()},
    )


class Comparison:
    """A suite with its target, where its files are, and what of it is done."""

    def __init__(self, options: CompareOptions, suite: Suite, console: Console):
        self.progress, self.suite = Progress(console), suite
        self._tell_missing_drafts()
        self.command = command_line("compare", _nameless(options), files="suite")
        self.results = options.folder / "results.jsonl"
        self.work = _work_folder(options)
        self.done = read_records(self.results, mend=True) if self.results.exists() else []
        name = str(assets.TARGET) if suite.target == EMBEDDED else suite.target
        self.target = TargetModel.load(name, **options.loading)
        self.target.require_tokenizer()
        place = {"target": suite.target, "device": self.target.device.type, "dtype": self.target.dtype_name}
        self.plan = Plan(suite, place | {"weights": weights_fingerprint(self.target)})

    def _tell_missing_drafts(self) -> None:
        places = [place for one in self.suite.systems for place in one.drafts or ()]
        missing = [place for place in places if not draft_is_there(place)]
        if missing:
            self.progress.log(f"left out, not there: {', '.join(missing)}")
        if places and missing == places:
            raise UserError("none of the drafts that the suite names is there; give --drafts DIR")

    def run(self) -> str | None:
        """Run the cells that have no result yet, each with one line of results at its end.

        Returns what went wrong, if anything; a cell that decodes with a draft whose training failed is left out.
        """
        cells, keys = self.plan.cells, {record.key for record in self.done}
        waiting = [cell for cell in cells if cell.key not in keys]
        there = len(cells) - len(waiting)
        self._tell_done(there)
        if waiting:
            self._check()
        failed, finished = dict[MethodKey | str, str](), 0  # by the draft that is missing, or by the cell
        with self.progress as progress:
            progress.begin(len(cells), there)
            for number, cell in enumerate(waiting, there + 1):
                if any(draft.method in failed for draft in cell.drafts):
                    progress.log(f"left out, because a draft is missing: {cell.label}")
                elif (problem := self._finish(cell, number)) is not None:
                    failed[cell.key if cell.task else cell.drafts[0].method] = problem
                    progress.log(problem)
                else:
                    finished += 1
        if not failed:
            return None
        first, missing = next(iter(failed.values())), len(waiting) - finished
        return f"no result of {missing} of {len(cells)} cells; the first: {first}"

    def _tell_done(self, there: int) -> None:
        cells = self.plan.cells
        done = f", {there} of them done" if there else ""
        self.progress.log(f"{self.suite.name}: {len(cells)} cells{done}")
        if foreign := {record.key for record in self.done} - {cell.key for cell in cells}:
            self.progress.log(
                f"{self.results} also holds {len(foreign)} results that the suite does not ask for any more; the "
                "report shows them, too"
            )

    def _finish(self, cell: Cell, number: int) -> str | None:
        """Run a cell and keep its result; returns what went wrong, if anything."""
        started, progress = time.monotonic(), self.progress
        try:
            result = self._train(cell) if cell.task is None else self._measure(cell)
        except Exception as error:
            if is_out_of_memory(error):  # a smaller batch may fit
                return f"{cell.label}: out of memory"
            if isinstance(error, UserError):
                return str(error)
            raise
        self._keep(cell, result, seconds := time.monotonic() - started)
        progress.reach(number)
        if not progress.console.is_terminal:
            progress.log(f"{number}/{len(self.plan.cells)} {cell.label}: {duration(seconds)}")
        return None

    def _keep(self, cell: Cell, result: Trained | Measurement, seconds: float) -> None:
        title, note = self.suite.title or self.suite.name, self.suite.note
        origin = Provenance.here(self.command, self.target.device, self.target.dtype)
        known = (cell.key, cell.label, round(seconds, 3), cell.config)
        append_lines(self.results, [Record(*known, result, title, note, origin)])

    def _check(self) -> None:
        """Build every system with each of its trees, and read every task, before the first hour is spent."""
        for draft in {draft.system.label: draft for draft in self.plan.drafts}.values():
            make_engines(self.target, [(draft, self._new(draft) if draft.loss else self._ready(draft))])
        if self.suite.measuring.accuracy:
            for draft in self.plan.drafts:
                if draft.place is not None:
                    _recorded(draft)
        largest = max(self.suite.measuring.batch_sizes)
        for task in self.suite.tasks:
            task_prompts(self.target, task, largest, largest)

    def _train(self, cell: Cell) -> Trained:
        (draft,) = cell.drafts
        self.progress.log(cell.label)
        recorded = None
        if draft.place is None:
            texts = self.training_text
            with self.progress.paused():  # a training has a bar of its own
                config, fresh, console = self._config(draft), self._new(draft), self.progress.console
                try:
                    result = finish_training(config, self.target, texts, fresh, console)
                except UserError as error:
                    raise UserError(f"{draft.method.words}: {error}") from error
        else:
            result, recorded = _recorded(draft)
        model = self._ready(draft)
        share = self.progress.part(1, f"accuracy of {draft.method.words}")
        heads = None
        if self.suite.measuring.accuracy:
            paths = rank_texts(self.target, model, *self._written, MAX_HEADS, share)
            heads = HeadAccuracy.of(paths, min(model.max_depth, MAX_HEADS))
        parameters, against = model.num_parameters(), draft.system.against
        known = (draft.method, parameters, result.tokens, result.seconds, result.loss, heads, against)
        return Trained(*known, recorded)

    def _config(self, draft: Draft) -> TrainConfig:
        suite, method = self.suite, draft.method
        assert draft.loss is not None and method.learning_rate is not None
        return TrainConfig(
            output=str(self._folder(draft)),
            target=suite.target,
            system=draft.system.system,
            draft=draft.system.options,
            max_length=suite.text.max_length,
            batch_tokens=suite.training.batch_tokens,
            max_steps=method.steps,
            lr=method.learning_rate,
            dtype=suite.training.dtype,
            seed=method.seed or 0,
            save_every_minutes=2.0,
            loss=draft.loss,
        )

    def _measure(self, cell: Cell) -> Measurement:
        assert cell.task is not None
        options, size = self.suite.measuring, cell.batch_size
        share = self.progress.part(1, cell.label)
        prompts = task_prompts(self.target, cell.task, max(size, options.prompts // size * size))
        whole, context = prompts[: len(prompts) // size * size], self.target.longest_run
        batches = make_batches(whole, size, cell.temperature, options.max_new_tokens, context)
        engines = make_engines(self.target, [(draft, self._ready(draft)) for draft in cell.drafts])
        found = measure(engines, batches, options.rounds, share)
        return Measurement(cell.task.name, size, cell.temperature, found)

    def _new(self, draft: Draft) -> DraftModel:
        """Return a draft with its starting values, which the seed decides."""
        torch.manual_seed(draft.method.seed or 0)
        try:
            return SYSTEMS[draft.system.system].from_target(self.target, **draft.system.options).eval()
        except UserError as error:
            raise UserError(f"system {draft.method.system!r}: {error}") from error

    def _ready(self, draft: Draft) -> DraftModel:
        return load_usable(draft.place or self._folder(draft), self.target)

    def _folder(self, draft: Draft) -> Path:
        return self.work / "drafts" / self.plan.weights(draft)

    @cached_property
    def training_text(self) -> list[Sample]:
        """Return what the drafts learn from; the target writes it, unless it did."""

        def tell(texts: int, _: int) -> None:
            self.progress.say(f"training text, {texts} of {self.suite.text.texts}")

        return training_text(self.target, self.suite.text, self.work / f"text.{self.plan.text}.jsonl", tell)

    @cached_property
    def _written(self) -> tuple[list[Request], tuple[tuple[int, ...], ...]]:
        """Return prompts of all tasks and what the target writes after them, greedily and sampled in turn.

        The requests are greedy ones, so that the draft's ranks are those of its logits.
        """
        options = self.suite.measuring
        prompts = [p for task in self.suite.tasks for p in task_prompts(self.target, task, options.prompts)]
        requests = []
        for i, prompt in enumerate(prompts):
            room = min(options.max_new_tokens, self.target.longest_run - len(prompt))
            requests.append(Request(prompt, room, SamplingParams(temperature=float(i % 2), seed=i)))
        texts = time_decoding(Engine(self.target), requests, max_sequences=_WRITTEN_TOGETHER).texts
        return [Request(one.prompt, one.max_new_tokens) for one in requests], texts


def _recorded(draft: Draft) -> tuple[RecordedResult, MethodKey]:
    """Return the training of a draft that was trained before, and how it went about; a loss of its own has no name."""
    assert draft.place is not None
    if not Path(draft.place, RECORD_FILE).is_file():
        raise UserError(
            f"{draft.place} has no {RECORD_FILE}, from which the table of trainings is made; "
            "set accuracy = false in the suite"
        )
    record, losses = read_record(draft.place), SYSTEMS[draft.system.system].training_defaults.losses()
    loss = next((name for name, one in losses.items() if asdict(one) == record.config.loss), None)
    how = replace(draft.method, loss=loss, steps=record.result.steps, learning_rate=record.config.lr)
    return record.result, how


def make_engines(target: TargetModel, drafts: Sequence[tuple[Draft, DraftModel]]) -> dict[MethodKey, Engine]:
    """Plain decoding, and every draft with each of its trees.

    UserError if a tree is unknown, or deeper than the draft goes; names the system.
    """
    engines = {MethodKey(): Engine(target)}
    for draft, model in drafts:
        for method in draft.methods:
            try:
                engines[method] = Engine(target, model, method.tree)
            except UserError as error:
                raise UserError(f"system {method.system!r}: {error}") from error
    return engines


def measure(
    engines: Mapping[MethodKey, Engine],
    batches: Sequence[Sequence[Request]],
    rounds: int,
    progress: Callable[[float], None],
) -> tuple[Decoded, ...]:
    """Decode all batches, of equal temperature, with every method, plain decoding first, `rounds` times.

    `progress` is called with the share that is done, 0 … 1.
    """
    timed = [TimedMethod(str(method), engine) for method, engine in engines.items()]
    found = dict(zip(engines, measure_in_turn(timed, batches, rounds, progress), strict=True))
    return tuple(
        Decoded(
            method=method,
            nodes=engines[method].policy.max_nodes - 1,
            batches=tuple(one.medians),
            acceptances=tuple(acceptance for run in one.first_round for acceptance in run.acceptances),
            step_milliseconds={name: 1e3 * value for name, value in (one.steps or {}).items()},
            identical=one.identical_texts(found[MethodKey()]),
            exact=one.method.comparable(batches[0][0].params.temperature),
        )
        for method, one in found.items()
    )
