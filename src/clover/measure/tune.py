"""`clover tune`: find the fastest tree, or none, for each batch size on this machine, and save it with the draft."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from clover import assets, packaged
from clover.drafting import PLAIN_DRAFTER, StaticDrafter, known_tokens, own_shape
from clover.drafting.tuning import (
    FILE_NAME,
    Choice,
    Tuning,
    VerifyCost,
    architecture_name,
    read_tuning,
    write_entry,
)
from clover.drafts.loading import find_system
from clover.engine import Request
from clover.errors import UserError
from clover.files import check_output_file
from clover.measure.budget import Budget, growing_parts
from clover.measure.options import TuneOptions
from clover.measure.ranks import MAX_DEPTH, RankPath, rank_texts
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.report.table import Table
from clover.measure.report.words import duration, mode, number_of, times
from clover.measure.session import OWN, PLAIN, Session
from clover.measure.steps import StepCost, share_time, time_in_turn
from clover.measure.systems import draft_kind
from clover.measure.timing import WRITTEN_TOGETHER, TimedDecoding
from clover.measure.trees import TreeCandidate, tree_label, worth_timing
from clover.options import next_command

_WRITING_SHARE = 0.4  # of the time after loading, for texts
_FEWEST_TOKENS = 8  # fewer are too few to choose a tree
_STEPS, _FEWEST = 40, 8  # timed steps of each tree, and the minimum, even if the time is up
_ORIGIN = ("device", "dtype", "machine", "threads", "date", "versions")
_SHOWN = 4  # trees of each batch size in the table, besides plain decoding


@dataclass(frozen=True)
class TimedTree:
    """The seconds of a tree's steps at one batch size, and its τ; the speed-up does not include the prefill."""

    step: StepCost
    tau: float
    plain_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Return the speed of the whole batch."""
        return self.step.batch_size * self.tau / self.step.seconds

    @property
    def speedup(self) -> float:
        """Return the speed-up against plain steps."""
        return self.tau * self.plain_seconds / self.step.seconds

    @property
    def choice(self) -> Choice:
        """Return the entry for this tree in a saved tuning."""
        step = self.step
        return Choice(step.batch_size, step.tree, self.tau, step.seconds, self.tokens_per_second)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return asdict(self.choice) | {
            "nodes": self.step.nodes,
            "steps": self.step.steps,
            "step_error": self.step.error,
            "speedup": self.speedup,
        }


def run_tune(options: TuneOptions, console: Console | None = None, errors: Console | None = None) -> Tuning:
    """Measure, save the tuning, print the table, and write the JSON file.

    UserError, if possible before anything is measured, if an option, a file or a model cannot be used.
    """
    file, budget = _check(options), Budget(options.max_minutes)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        session = load_session(options)
        budget.start(progress)
        file = file or _file_of(session.draft.place)
        origin = session.provenance("tune", options, "files")
        texts = rank_paths(session, options, progress, budget, min(session.draft.model.max_depth, MAX_DEPTH))
        sizes, missing = _measure(session, options, texts, budget, progress)
    tuning = _tuning(session, origin, sizes)
    write_entry(file, tuning)
    best = [f"{times(one.speedup)} at batch {one.step.batch_size}" for one, *_ in sizes[:3]]
    title = f"{draft_kind(session.draft.model.config)}, tuned: {', '.join(best)}"
    facts = {"time": duration(budget.used)}
    if missing:
        facts["not timed"] = f"{'; '.join(missing)}; by {budget.why}"
    report = make_tune_report(session, options, title, texts, sizes, **facts, **dict(budget.facts))
    wrote = f"wrote {file}; --tree auto, the default, starts from it"
    publish(report, console, options.json, lines=[wrote, next_command("use it", "serve", options)])
    return tuning


def load_session(options: TuneOptions) -> Session:
    """Load the target, the draft and the prompts for a tuning."""
    lengths = options.max_new_tokens, options.max_prompts
    return Session.load(options, (options.draft,), options.files, *lengths)


def _check(options: TuneOptions) -> Path | None:
    """Return the file to write; None if the choice of the draft depends on the target.

    UserError, before any time is spent, for errors that would otherwise appear at the end.
    """
    if options.costs is not None:
        raise UserError("--costs holds times of vLLM's steps; give --for vllm with it")
    check_outputs(options.json)
    if options.output is not None:
        check_no_package(options.output)
        return _writable(options.output)
    depends_on_target = options.target is not None and options.draft is None
    return None if depends_on_target else _file_of(packaged.draft_place(options.draft))


def _file_of(place: str) -> Path:
    """Return the file to write in the draft's directory."""
    folder = Path(place)
    if place == "lookup":
        find_system(place)  # raises the error that it was removed
    if not folder.is_dir():
        raise UserError(f"the draft {place} is not a directory to save the tuning in; give --output FILE")
    check_no_package(folder)
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written; give --output FILE")
    return _writable(folder / FILE_NAME)


def check_no_package(place: Path) -> None:
    """Raise UserError if a file or directory lies in a package of drafts."""
    drafts = [*assets.DRAFTS.values(), *(one.place for one in packaged.packaged_drafts())]
    if any(place.resolve().is_relative_to(draft.parent.resolve()) for draft in drafts):
        raise UserError(
            f"{place} lies in a package, where nothing is written: copy the directory of the draft and give the copy "
            "as --draft, so that its tuning is used, or give --output FILE in another directory"
        )


def _writable(file: Path) -> Path:
    check_output_file(file)
    if file.exists():
        read_tuning(file)  # because its other entries are kept
    return file


def rank_paths(
    session: Session, options: TuneOptions, progress: Progress, budget: Budget, depth: int
) -> list[tuple[RankPath, ...]]:
    """Return the rank paths of each text that the target writes; see `clover.measure.ranks`.

    First a single text is written, then more at a time, within a share of the time; the first may use a third of that
    share. The target uses half of the time for some texts, and the draft the other half. UserError if there are too few
    tokens.
    """
    requests, draft = session.requests(options.temperature, options.seed), session.draft.model
    engine, found, took = session.engine(OWN), list[tuple[RankPath, ...]](), 0.0
    loaded, end = budget.used, budget.used + _WRITING_SHARE * max(budget.left, 0.0)
    progress.begin(len(requests))
    progress.say("writing texts with the target, and ranking their tokens with the draft")
    for numbers in growing_parts(len(requests), WRITTEN_TOGETHER):
        started = budget.used
        left = (end - started) / (1 if found else 3)
        if found and took > left:
            break
        some = [requests[number] for number in numbers]
        decoding = TimedDecoding(engine, some)
        decoding.advance(left / 2)
        texts = decoding.run.texts
        over = started + left
        found += rank_texts(
            session.target, draft, some, texts, depth, enough=lambda over=over: budget.used >= over
        )
        progress.reach(len(found))
        took = budget.used - started
    if (tokens := sum(map(len, found))) < _FEWEST_TOKENS and budget.used >= end:
        raise UserError(
            f"--max-minutes {budget.minutes:g} is too short: loading took {duration(loaded)}, and then there was "
            f"time for {number_of(tokens, 'token')} of the target's text; give more"
        )
    return [paths for paths in found if paths]


def _measure(
    session: Session,
    options: TuneOptions,
    texts: Sequence[Sequence[RankPath]],
    budget: Budget,
    progress: Progress,
) -> tuple[list[list[TimedTree]], list[str]]:
    """Return all trees per batch size, the fastest first; and descriptions of those that were hardly or not timed."""
    draft, sizes, missing = session.draft.model, list[list[TimedTree]](), list[str]()
    depth = min(draft.max_depth, MAX_DEPTH)
    own = own_shape(draft).cut(depth)
    progress.begin(len(options.batch_sizes))
    with budget.until_interrupted():
        for size, enough in share_time(options.batch_sizes, budget, _STEPS, _FEWEST, progress):
            candidates = worth_timing(texts, own, depth, size, known_tokens(draft))
            batches = session.batches(size, options.temperature, options.seed)
            timed = time_trees(session, batches, candidates, enough, options.seed)
            sizes.append(timed)
            missing += _missing(size, timed, candidates)
    if untimed := options.batch_sizes[len(sizes) :]:
        missing.append(f"batch size {', '.join(map(str, untimed))}")
    return sizes, missing


def _missing(size: int, timed: Sequence[TimedTree], candidates: Sequence[TreeCandidate]) -> Iterator[str]:
    """Yield the trees that were not timed at a batch size, and the number of timed steps if it is too small."""
    names, few = {one.step.tree for one in timed}, min(one.step.steps for one in timed)
    if left := [tree_label(one.spec) for one in candidates if one.spec not in names]:
        yield f"at batch size {size} {', '.join(left)}"
    if few < _FEWEST:
        yield f"more than {number_of(few, 'step')} of each tree at batch size {size}"


def time_trees(
    session: Session,
    batches: Sequence[Sequence[Request]],
    candidates: Sequence[TreeCandidate],
    enough: Callable[[int], bool],
    seed: int,
) -> list[TimedTree]:
    """Time plain steps and trees in turn (`time_in_turn`); return them, plain decoding included, the fastest first."""
    draft = session.draft.model
    drafters = {PLAIN: PLAIN_DRAFTER, **{one.spec: StaticDrafter(draft, one.shape) for one in candidates}}
    taus = {PLAIN: 1.0, **{one.spec: one.tau for one in candidates}}
    steps = time_in_turn(session.target, draft, drafters, batches, enough, seed).costs
    return fastest_first(TimedTree(one, taus[name], steps[PLAIN].seconds) for name, one in steps.items())


def fastest_first(timed: Iterable[TimedTree]) -> list[TimedTree]:
    """Return trees of one batch size, the fastest first."""
    return sorted(timed, key=lambda one: -one.speedup)


def _verify_costs(timed: Iterable[TimedTree]) -> list[VerifyCost]:
    """Return the cost of the target's pass by nodes and batch size, as the median over trees of one size."""
    found: dict[tuple[int, int], list[float]] = {}
    for one in timed:
        found.setdefault((one.step.batch_size, one.step.nodes), []).append(one.step.verify_seconds)
    return [VerifyCost(size, nodes, median(seconds)) for (size, nodes), seconds in sorted(found.items())]


def _tuning(session: Session, origin: Provenance, sizes: Sequence[Sequence[TimedTree]]) -> Tuning:
    """Return the tuning to save."""
    every = list(chain.from_iterable(sizes))
    return Tuning(
        **{name: getattr(origin, name) for name in _ORIGIN},
        weights=session.target.weights,
        exact=session.target.exact,
        target=architecture_name(session.target.config),
        verify=tuple(_verify_costs(every)),
        choices=tuple(one.choice for one in every),
    )


def make_tune_report(
    session: Session,
    options: TuneOptions,
    title: str,
    texts: Sequence[Sequence[RankPath]],
    sizes: Sequence[Sequence[TimedTree]],
    steps: str = "the median, all trees timed in turn",
    **facts: str,
) -> Report:
    """Return the report of a tuning. `steps` describes their timing; `facts` come last on the card and in JSON."""
    draft, tokens, every = session.draft, sum(map(len, texts)), len(session.prompts)
    prompts = f"{len(texts)} of " * (len(texts) < every) + number_of(every, "prompt") + session.left_out_words
    trees = [one.to_dict() for some in sizes for one in some]
    card = {
        "target": session.target_name,
        "draft": f"{draft.name} ({draft_kind(draft.model.config)})",
        "acceptance on": f"{prompts}, {number_of(tokens, 'token')} in all, {mode(options.temperature)}",
    }
    return Report(
        title,
        session.provenance("tune", options, "files"),
        [*card.items(), *facts.items()],
        [best_table(sizes, steps)],
        data={"prompts": len(texts), "tokens": tokens, "trees": trees, **facts},
    )


def best_table(sizes: Sequence[Sequence[TimedTree]], steps: str) -> Table:
    """Return a table of plain decoding and the first, fastest trees of each batch size; `steps` is for a note."""
    columns: dict[str, Callable[[TimedTree], str]] = {
        "batch": lambda one: str(one.step.batch_size),
        "tree": lambda one: tree_label(one.step.tree),
        "draft\ntokens": lambda one: str(one.step.nodes - 1),
        "τ": lambda one: f"{one.tau:.2f}",
        "step,\nms": lambda one: f"{1e3 * one.step.seconds:.1f}",
        "tokens/s": lambda one: f"{one.tokens_per_second:.1f}",
        "speed-up": lambda one: times(one.speedup),
    }
    shown = [
        one for timed in sizes for place, one in enumerate(timed) if place < _SHOWN or one.step.tree == PLAIN
    ]
    return Table.of(
        "The best trees per batch size",
        shown,
        columns,
        f"τ: tokens per step and text, counted; step: {steps}",
        group=lambda one: one.step.batch_size,
        once=("batch",),
        words=2,
        optional=("draft\ntokens",),
    )
