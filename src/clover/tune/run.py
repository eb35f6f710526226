"""A tuning from its options to the saved file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console

from clover import assets
from clover.drafting.tuning import Tuning, target_fingerprint, write_entry
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine
from clover.errors import UserError
from clover.report.output import publish, say
from clover.report.progress import Progress
from clover.report.provenance import Provenance
from clover.target import TargetModel
from clover.tune.options import TuneOptions
from clover.tune.ranks import MAX_DEPTH, RankPath, rank_texts
from clover.tune.report import Found, make_report
from clover.tune.resume import Resume
from clover.tune.shapes import worth_timing
from clover.tune.texts import Text, fill_batch, read_requests, write_texts
from clover.tune.timing import Timed, time_trees, verify_costs

_TEXTS, _RANKS = 0.1, 0.1  # of the work, for the progress; the rest is timing
_WRITTEN_TOGETHER = 8
_TIMED = TypeAdapter(list[Timed])


def run_tune(options: TuneOptions, console: Console | None = None, errors: Console | None = None) -> Tuning:
    """Measure, save the tuning, print the table, and write the JSON file and the picture.

    Finished measurements are saved beside the output: after an interruption the same call goes on from them.

    Args:
        options: what to tune for.
        console: for the table; standard output when left out.
        errors: for the progress; standard error when left out.

    Raises:
        UserError: an option, a file or a model cannot be used.
    """
    options.check()
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        tuner = _Tuner(options, progress)
        found = tuner.measure()
    tuning = found.tuning
    write_entry(options.tuning_file, tuning)
    console = console or Console()
    publish(make_report(found), console, options.json, options.picture)
    say(console, f"wrote {options.tuning_file}")
    tuner.resume.remove()
    return tuning


class _Tuner:
    """The models, the prompts and what was measured so far."""

    def __init__(self, options: TuneOptions, progress: Progress):
        self.options, self.progress = options, progress
        self.target, self.draft = _load(options)
        self.origin = Provenance.here(options.command, self.target.device, self.target.dtype)
        self.depth = min(self.draft.max_depth, MAX_DEPTH)
        self.own_tree = self.draft.config.tree_shape.cut(self.depth)
        self.requests = read_requests(
            options.files,
            self.target,
            options.max_prompts,
            options.max_new_tokens,
            options.temperature,
            options.seed,
        )
        self.resume = Resume(options.tuning_file, self._conditions())
        self.started = time.monotonic()

    def measure(self) -> Found:
        """Measure everything that was not measured before an interruption."""
        sizes = self.options.batch_sizes
        self.progress.begin(_TEXTS + _RANKS + len(sizes))
        texts = self._texts()
        paths = self._paths(texts)
        timed = self._timed(paths)
        every = list(chain.from_iterable(timed))
        origin = self.origin
        tuning = Tuning(
            device=origin.device,
            dtype=origin.dtype,
            machine=origin.machine,
            threads=origin.threads,
            date=origin.date,
            versions=origin.versions,
            target=target_fingerprint(self.target.config),
            verify=tuple(chain.from_iterable(map(verify_costs, timed))),
            choices=tuple(one.choice for one in every),
        )
        new_tokens = sum(len(text.new) for text in texts)
        system = str(self.draft.config.model_type)
        return Found(
            self.options,
            origin,
            system,
            len(texts),
            new_tokens,
            time.monotonic() - self.started,
            tuning,
            every,
        )

    def _conditions(self) -> dict[str, Any]:
        """Under which saved measurements hold."""
        parts = (*self.draft.parameters(), self.target.lm_head_weight)
        requests = [[list(one.prompt), one.max_new_tokens, asdict(one.params)] for one in self.requests]
        return {
            "requests": requests,
            "weights": [float(part.detach().double().sum()) for part in parts],
            "origin": [self.origin.machine, self.origin.dtype, self.origin.versions],
        }

    def _texts(self) -> list[Text]:
        told = self.progress.part(_TEXTS, "writing texts with the target")

        def write() -> list[list[int]]:
            engine = Engine(self.target, self.draft)
            return [list(text.new) for text in write_texts(engine, self.requests, _WRITTEN_TOGETHER, told)]

        written = self.resume.get("texts", write)
        told(1.0)
        pairs = zip(self.requests, written, strict=True)
        return [Text(one.prompt, tuple(new), one.params) for one, new in pairs]

    def _paths(self, texts: Sequence[Text]) -> list[tuple[RankPath, ...]]:
        told = self.progress.part(_RANKS, "ranking their tokens with the draft")
        return rank_texts(self.target, self.draft, texts, self.depth, _WRITTEN_TOGETHER, told)

    def _timed(self, paths: Sequence[tuple[RankPath, ...]]) -> list[list[Timed]]:
        """Per batch size all trees, the fastest first."""
        sizes, found = self.options.batch_sizes, list[list[Timed]]()
        for number, size in enumerate(sizes):
            told = self.progress.part(1.0, f"batch size {size}: timing trees")
            left = self.started + 60 * self.options.max_minutes - time.monotonic()
            measure = partial(self._measured, paths, size, left / (len(sizes) - number), told)
            found.append(_TIMED.validate_python(self.resume.get(f"batch size {size}", measure)))
            told(1.0)
        return found

    def _measured(
        self, paths: Sequence[tuple[RankPath, ...]], size: int, seconds: float, told: Callable[[float], None]
    ) -> list[Any]:
        candidates = worth_timing(paths, self.own_tree, self.depth, size)
        batches = [fill_batch(self.requests, size, at) for at in range(0, len(self.requests), size)]
        seed = self.options.seed
        timed = time_trees(self.target, self.draft, batches, candidates, seconds, told, seed)
        return _TIMED.dump_python(timed, mode="json")


def _load(options: TuneOptions) -> tuple[TargetModel, DraftModel]:
    if options.target is not None and options.draft is None:
        raise UserError("a target was given but no draft; give its draft")
    target = TargetModel.load(
        options.target or str(assets.TARGET),
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    return target, load_draft(assets.draft_place(options.draft), target)
