"""A tuning from its options to the saved file."""

import os
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from clover import assets
from clover.drafting import known_tokens, own_tree
from clover.drafting.tuning import FILE_NAME, Tuning, architecture_name, read_tuning, write_entry
from clover.drafts import load_usable
from clover.engine import Engine
from clover.errors import UserError
from clover.files import check_output_file
from clover.measure.options import TuneOptions
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.report.words import draft_kind, duration, mode, times
from clover.measure.tune.ranks import MAX_DEPTH, RankPath, rank_texts
from clover.measure.tune.report import as_data, best_table
from clover.measure.tune.shapes import worth_timing
from clover.measure.tune.texts import fill_batch, read_requests, write_texts
from clover.measure.tune.timing import Timed, share_time, time_trees, verify_costs
from clover.options import command_line
from clover.target import TargetModel

_WANTED, _FEWEST = 40, 8  # steps of each tree: so many are wanted, so many are taken however late it is
_ORIGIN = ("device", "dtype", "machine", "threads", "date", "versions")


def run_tune(options: TuneOptions, console: Console | None = None, errors: Console | None = None) -> Tuning:
    """Measure, save the tuning, print the table, and write the JSON file.

    UserError if an option, a file or a model cannot be used; before anything is measured where possible.
    """
    file = _check(options)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        tuner = Tuner(options)
        file = file or _beside(tuner.place)
        sizes = tuner.measure(progress)
    tuning = tuner.tuning(sizes)
    write_entry(file, tuning)
    publish(tuner.report(sizes), console, options.json, lines=[f"wrote {file}"])
    return tuning


def _check(options: TuneOptions) -> Path | None:
    """The file to write, None where the target tells which draft it lies with.

    Raises a UserError, before any time is spent, for what would fail at the end.
    """
    if options.costs is not None:
        raise UserError("--costs holds times of vLLM's steps; give --for vllm with it")
    check_outputs(options.json)
    if options.output is not None:
        return _writable(options.output)
    told_by_target = options.target is not None and options.draft is None
    return None if told_by_target else _beside(assets.draft_place(options.draft))


def _beside(place: str) -> Path:
    """The file to write in the draft's directory."""
    folder = Path(place)
    if not folder.is_dir():
        raise UserError(f"the draft {place} is not a directory to save the tuning in; give --output FILE")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written; give --output FILE")
    return _writable(folder / FILE_NAME)


def _writable(file: Path) -> Path:
    check_output_file(file)
    if file.exists():
        read_tuning(file)  # its other entries are kept
    return file


class Tuner:
    """The models and the prompts, and what is measured with them."""

    def __init__(self, options: TuneOptions):
        self.options, self.started = options, time.monotonic()
        self.target = TargetModel.load(options.target or assets.TARGET, **options.loading)
        self.place = assets.draft_place(options.draft, None if options.target is None else self.target)
        self.draft = load_usable(self.place, self.target)
        command = command_line("tune", options, "files")
        self.origin = Provenance.here(command, self.target.device, self.target.dtype)
        chosen = (options.max_prompts, options.max_new_tokens, options.temperature, options.seed)
        self.requests = read_requests(options.files, self.target, *chosen)

    def rank_paths(self, progress: Progress, depth: int) -> list[tuple[RankPath, ...]]:
        """Per text that the target writes, where the draft ranks its tokens."""
        progress.say("writing texts with the target")
        texts = write_texts(Engine(self.target, self.draft), self.requests)
        progress.say("ranking their tokens with the draft")
        return rank_texts(self.target, self.draft, self.requests, texts, depth)

    def measure(self, progress: Progress) -> list[list[Timed]]:
        """Per batch size all trees, the fastest first."""
        options, requests = self.options, self.requests
        depth, sizes = min(self.draft.max_depth, MAX_DEPTH), list[list[Timed]]()
        paths = self.rank_paths(progress, depth)
        own = own_tree(self.draft).cut(depth)
        progress.begin(len(options.batch_sizes))
        minutes = options.max_minutes - (time.monotonic() - self.started) / 60
        for size, enough in share_time(options.batch_sizes, minutes, _WANTED, _FEWEST, progress):
            candidates = worth_timing(paths, own, depth, size, known_tokens(self.draft))
            batches = [fill_batch(requests, size, at) for at in range(0, len(requests), size)]
            sizes.append(time_trees(self.target, self.draft, batches, candidates, enough, options.seed))
        return sizes

    def tuning(self, sizes: Sequence[Sequence[Timed]]) -> Tuning:
        """What is saved."""
        every = list(chain.from_iterable(sizes))
        return Tuning(
            **{name: getattr(self.origin, name) for name in _ORIGIN},
            target=architecture_name(self.target.config),
            verify=tuple(verify_costs(every)),
            choices=tuple(one.choice for one in every),
        )

    def report(self, sizes: Sequence[Sequence[Timed]]) -> Report:
        """Table and numbers."""
        options, seconds = self.options, time.monotonic() - self.started
        system = draft_kind(self.draft.config)
        best = [f"{times(one.speedup)} at batch {one.choice.batch_size}" for one, *_ in sizes[:3]]
        title = f"{system}, tuned: {', '.join(best)}"
        draft = f"{assets.draft_name(options.draft, self.place)} ({system})"
        texts = f"{len(self.requests)} prompts, {options.max_new_tokens} new tokens each at most"
        texts += f", {mode(options.temperature)}"
        facts = [("target", options.target or "embedded"), ("draft", draft), ("acceptance on", texts)]
        trees = [as_data(one) for some in sizes for one in some]
        data = {"seconds": seconds, "prompts": len(self.requests), "trees": trees}
        facts.append(("time", duration(seconds)))
        return Report(title, self.origin, facts, [best_table(sizes)], data=data)
