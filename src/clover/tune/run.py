"""A tuning from its options to the saved file."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain, cycle, islice
from statistics import median
from typing import Any

import torch
from rich.console import Console

from clover import assets
from clover.drafting.tuning import PLAIN, Tuning, target_fingerprint, write_entry
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.evaluate import choose_prompts
from clover.evaluate.progress import EvaluationProgress
from clover.files import write_json
from clover.provenance import machine, versions
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import TreeShape, static_spec
from clover.tune.costs import FEW_SIZES, CostModel, StepCosts, measure_costs, probe_trees
from clover.tune.kept import Kept, kept_path
from clover.tune.options import TuneOptions
from clover.tune.picture import save_picture
from clover.tune.ranks import Ranking, rank_texts
from clover.tune.report import Tried, TuneReport, join
from clover.tune.search import (
    MOST_DEPTHS,
    MOST_NODES,
    Prediction,
    break_even,
    predict,
    rules_worth_trying,
    worth_trying,
)
from clover.tune.shapes import Candidate, best_candidates, exact_tau
from clover.tune.table import print_report
from clover.tune.texts import Text, write_texts
from clover.tune.trials import Trial, make_batches, try_trees

_TEXTS, _RANKS, _BATCH_SIZE = 1200, 800, 2000  # parts of the work, for the progress
_COSTS_SHARE = 0.35  # of the time of a batch size
_REPEATS, _TRIAL_REPEATS = 9, 25  # steps that are timed
_BATCHES = 8  # of one text each, in a trial
_WRITTEN_TOGETHER = 8
_SHALLOW_PARTS = (2, 4)  # of the depth of the best static tree
_FAR, _FARTHEST = 8, 1024  # the second context: so many times the first, and at most so many tokens


def run_tune(
    options: TuneOptions, console: Console | None = None, errors: Console | None = None
) -> TuneReport:
    """Measure, save the tuning, print the table, and write the JSON file and the picture.

    Finished measurements are kept beside the output: after an interruption the same call goes on from them.

    Args:
        options: what to tune for.
        console: for the table; standard output when left out.
        errors: for the progress; standard error when left out.

    Raises:
        UserError: an option, a file or a model cannot be used.
    """
    console = console or Console()
    options.check()
    with EvaluationProgress(errors or Console(stderr=True)) as progress:
        progress.say("loading target and draft")
        tuner = _Tuner(options, progress)
        report = tuner.report()
    write_entry(options.tuning_file, report.tuning)
    print_report(console, report)
    if options.json is not None:
        write_json(options.json, report.to_dict())
    if options.picture is not None:
        save_picture(report, options.picture)
    tuner.kept.remove()
    for path in (options.tuning_file, options.json, options.picture):
        if path is not None:
            console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    return report


class _Tuner:
    """The models, the prompts and what was measured so far."""

    def __init__(self, options: TuneOptions, progress: EvaluationProgress):
        self.options, self.progress = options, progress
        self.target, self.draft = _load(options)
        self.depth = min(self.draft.max_depth, MOST_DEPTHS)
        self.own_tree = self.draft.config.tree_shape.cut(self.depth)
        self.requests = _requests(options, self.target)
        self.kept = Kept(kept_path(options.tuning_file), self._conditions())
        self.started = time.monotonic()

    def report(self) -> TuneReport:
        """Measure everything that was not kept."""
        options = self.options
        self.progress.begin(_TEXTS + _RANKS + _BATCH_SIZE * len(options.batch_sizes))
        texts = self._texts()
        ranking = self._ranking(texts)
        tried, costs = self._try_all(texts, ranking)
        tuning = Tuning(
            device=self.target.device.type,
            dtype=str(self.target.dtype).removeprefix("torch."),
            machine=machine(self.target.device),
            threads=torch.get_num_threads(),
            date=datetime.date.today().isoformat(),
            versions=versions(),
            target=target_fingerprint(self.target.config),
            verify=tuple(chain.from_iterable(one.verify for one in costs)),
            choices=tuple(one.trial.choice() for some in tried.values() for one in some),
        )
        return TuneReport(
            command=options.command,
            draft=options.draft or "embedded",
            system=str(self.draft.config.model_type),
            prompts=len(texts),
            new_tokens=ranking.positions,
            temperature=options.temperature,
            seconds=time.monotonic() - self.started,
            tuning=tuning,
            tried=tried,
        )

    def _conditions(self) -> dict[str, Any]:
        """Under which kept measurements hold."""
        parts = (*self.draft.parameters(), self.target.lm_head_weight)
        return {
            "requests": [
                [list(one.prompt), one.max_new_tokens, one.params.temperature] for one in self.requests
            ],
            "weights": [float(part.detach().double().sum()) for part in parts],
            "machine": machine(self.target.device),
            "dtype": str(self.target.dtype),
            "versions": versions(),
            "search": [MOST_NODES, MOST_DEPTHS, [one.name for one in fields(Trial)]],
        }

    def _texts(self) -> list[Text]:
        self.progress.say("the target's texts")
        advance = _Share(self.progress, _TEXTS)

        def write() -> list[list[int]]:
            engine = Engine(self.target, self.draft)
            return [list(text.new) for text in write_texts(engine, self.requests, _WRITTEN_TOGETHER, advance)]

        written = self.kept.get("texts", write)
        advance(1.0)
        return [
            Text(one.prompt, tuple(new), one.params) for one, new in zip(self.requests, written, strict=True)
        ]

    def _ranking(self, texts: Sequence[Text]) -> Ranking:
        self.progress.say("the draft's ranks along them")
        return rank_texts(
            self.target, self.draft, texts, self.depth, _WRITTEN_TOGETHER, _Share(self.progress, _RANKS)
        )

    # -- one batch size ------------------------------------------------------------------------------------------------

    def _try_all(
        self, texts: Sequence[Text], ranking: Ranking
    ) -> tuple[dict[int, tuple[Tried, ...]], list[StepCosts]]:
        candidates = best_candidates(ranking.paths, MOST_NODES, self.depth)
        if all(one.shape != self.own_tree for one in candidates):
            tau = exact_tau(ranking.paths, frozenset(self.own_tree.paths[1:]))
            candidates.append(Candidate(self.own_tree, tau))
        known = {one.shape.budget: one.shape for one in sorted(candidates, key=lambda one: one.tau)}
        probes = probe_trees(known.get, self.depth, self.target.vocab_size)
        tried, costs = {}, []
        for done, size in enumerate(self.options.batch_sizes):
            left = len(self.options.batch_sizes) - done
            costs.append(self._costs(size, probes, texts, known, left))
            model = CostModel(costs[-1])
            predictions = predict(model, candidates)
            tried[size] = join(self._trials(model, predictions, texts, left), predictions)
        return tried, costs

    def _costs(
        self,
        size: int,
        probes: list[str],
        texts: Sequence[Text],
        known: dict[int, TreeShape],
        left: int,
    ) -> StepCosts:
        self.progress.say(f"batch size {size}, costs")
        advance = _Share(self.progress, _BATCH_SIZE * _COSTS_SHARE)
        enough = partial(self._time(_COSTS_SHARE / left), 1.0)

        def measure() -> dict[str, Any]:
            near, far = _contexts(self.target, self.draft, texts)
            trees = measure_costs(self.target, self.draft, probes, _rows(texts, size, near), _REPEATS, enough)
            if far:
                few = probe_trees(known.get, 1, self.target.vocab_size, FEW_SIZES)
                trees += measure_costs(
                    self.target, self.draft, few, _rows(texts, size, far), _REPEATS, enough
                )
            return StepCosts(size, trees).to_json()

        found = StepCosts.from_json(self.kept.get(f"costs {size}", measure))
        advance(1.0)
        return found

    def _trees(self, model: CostModel, predictions: list[Prediction]) -> list[str]:
        promising, size = worth_trying(predictions), model.costs.batch_size
        best = promising[0]
        plain = size / model.plain_step()
        least = break_even(model, self.depth, max(best.tokens_per_second, plain))
        trees = [PLAIN, *(one.candidate.spec for one in promising), static_spec(self.own_tree)]
        # Harder text than that which is tuned on wants shallower trees: `auto` is to know what they cost.
        trees += [f"chain:{-(-best.candidate.shape.max_depth // part)}" for part in _SHALLOW_PARTS]
        trees += rules_worth_trying(best.candidate.shape, size, self.depth, least)
        return list(dict.fromkeys(trees))

    def _trials(
        self,
        model: CostModel,
        predictions: list[Prediction],
        texts: Sequence[Text],
        left: int,
    ) -> list[Trial]:
        size, trees = model.costs.batch_size, self._trees(model, predictions)
        self.progress.say(f"batch size {size}, trials")
        advance = _Share(self.progress, _BATCH_SIZE * (1 - _COSTS_SHARE))
        enough = self._time(1 / left)

        def measure() -> list[dict[str, Any]]:
            batches = make_batches(texts, size, max(_BATCHES // size, 1))
            trials = try_trees(
                self.target,
                self.draft,
                trees,
                batches,
                model.by_nodes,
                _TRIAL_REPEATS,
                enough,
                advance,
            )
            return [trial.to_json() for trial in trials]

        found = [Trial(**values) for values in self.kept.get(f"trials {size}", measure)]
        advance(1.0)
        return found

    def _time(self, share: float) -> Callable[[float], bool]:
        """Tells when a part of this share of the time that is left is over."""
        now = time.monotonic()
        left = max(self.started + 60 * self.options.max_minutes - now, 0.0)
        return lambda part: time.monotonic() > now + part * share * left


class _Share:
    """Counts a part of the work in the progress, by its share that is done."""

    def __init__(self, progress: EvaluationProgress, part: float):
        self.progress, self.part, self.done = progress, part, 0

    def __call__(self, share: float) -> None:
        done = round(self.part * share)
        self.progress.advance(done - self.done)
        self.done = done


def _load(options: TuneOptions) -> tuple[TargetModel, DraftModel]:
    if options.target is not None and options.draft is None:
        raise UserError("a target was given but no draft; give its draft")
    target = TargetModel.load(
        options.target or str(assets.TARGET),
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    return target, load_draft(options.draft or assets.DRAFT, target)


def _requests(options: TuneOptions, target: TargetModel) -> list[Request]:
    prompts = choose_prompts(options.files, target, options.max_prompts)
    room = target.context_length - options.max_new_tokens
    requests = [
        Request(
            prompt.tokens,
            options.max_new_tokens,
            SamplingParams(temperature=options.temperature, seed=options.seed + number),
        )
        for number, prompt in enumerate(prompts)
        if len(prompt.tokens) <= room
    ]
    if not requests:
        raise UserError(
            f"no prompt leaves room for {options.max_new_tokens} new tokens in the target's context of "
            f"{target.context_length}; lower --max-new-tokens or give shorter prompts"
        )
    return requests


def _contexts(target: TargetModel, draft: DraftModel, texts: Sequence[Text]) -> tuple[int, int]:
    """The context of the user's prompts half-way, and a longer one; 0 where the target has no room for it."""
    most = (target.context_length - draft.max_depth) // 2
    near = round(median(len(text.prompt) + len(text.new) / 2 for text in texts))
    near = max(min(near, most), 1)
    far = min(_FAR * near, _FARTHEST, most)
    return near, far if far >= 2 * near else 0


def _rows(texts: Sequence[Text], batch_size: int, length: int) -> list[tuple[int, ...]]:
    """Stretches of the texts, one per row, each from another text on."""
    rows = []
    for row in range(batch_size):
        start = row % len(texts)
        tokens = chain.from_iterable(text.tokens for text in cycle([*texts[start:], *texts[:start]]))
        rows.append(tuple(islice(tokens, length)))
    return rows
