"""An evaluation from its options to the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from clover import assets
from clover.api import load
from clover.data import FileTexts, Sample
from clover.data.tasks import TaskPrompt, fitting, read_prompts
from clover.engine import Engine
from clover.errors import UserError
from clover.evaluate.acceptance import (
    Continuation,
    Setting,
    continue_prompts,
    count_groups,
    count_kinds,
    count_positions,
)
from clover.evaluate.accuracy import HeadAccuracy, as_sample, measure_heads, text_batches
from clover.evaluate.picture import draw
from clover.evaluate.report import make_tables
from clover.options import command_line
from clover.report.figure import Picture
from clover.report.output import Report, check_outputs, publish
from clover.report.progress import Progress
from clover.report.provenance import Provenance
from clover.report.words import system_name
from clover.target import TargetModel
from clover.tree import parse_tree

_EMBEDDED, _OWN_TREE = "embedded", "own tree"
DEVELOPMENT = "development"  # the group of the embedded prompts to develop with
_FEWEST_NEW_TOKENS = 2


@dataclass(frozen=True)
class EvaluateOptions:
    """What to evaluate on what; target, draft, dtype and device are those of `clover.load`.

    Args:
        files: prompts, see `clover.data.tasks`; the texts' own openings, or else the embedded development prompts,
            when left out.
        texts: the heads are measured on these texts, see `clover.data.formats`, in place of what the target writes.
        trees: each is measured at each temperature; the draft's own when left out.
        max_new_tokens: tokens per prompt.
        max_prompts: prompts at most, spread over the groups; and as many texts.
        batch_size: prompts that run together.
        json, picture: files for the numbers and for the picture, if wanted.
    """

    files: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    target: str | None = None
    draft: str | None = None
    trees: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = 128
    max_prompts: int = 24
    batch_size: int = 8
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False
    seed: int = 0
    json: Path | None = None
    picture: Path | None = None

    @property
    def command(self) -> str:
        """The command line that chooses the same.

        >>> EvaluateOptions(files=("a.jsonl",), trees=("chain:4", "clover2")).command
        'clover evaluate a.jsonl --tree chain:4 --tree clover2'
        """
        return command_line("evaluate", self, files="files")


def run_evaluate(
    options: EvaluateOptions, console: Console | None = None, errors: Console | None = None
) -> Report:
    """Measure, print the tables, and write the JSON file and the picture.

    Args:
        options: what to measure.
        console: for the tables; standard output when left out.
        errors: for the progress; standard error when left out.

    Raises:
        UserError: an option, a file or a model cannot be used.
    """
    if options.max_new_tokens < _FEWEST_NEW_TOKENS:
        raise UserError(f"max_new_tokens is {options.max_new_tokens}; heads are measured on 2 tokens or more")
    check_outputs(json=options.json, picture=options.picture)
    for tree in options.trees:
        parse_tree(tree)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        evaluation = _Evaluation(options)
        heads, settings = evaluation.measure(progress)
    report = evaluation.report(heads, settings)
    publish(report, console, json=options.json, picture=options.picture)
    return report


class _Evaluation:
    """The models, the prompts and the texts of one run."""

    def __init__(self, options: EvaluateOptions):
        self.options = options
        model = load(
            options.target,
            options.draft,
            method="draft",
            dtype=options.dtype,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
        )
        self.target, draft = model.target, model.engine.draft
        assert draft is not None
        self.draft = draft
        self.engines = {tree: Engine(self.target, draft, parse_tree(tree)) for tree in options.trees}
        self.engines = self.engines or {_OWN_TREE: model.engine}
        prompts = choose_prompts(options.files or options.texts, self.target, options.max_prompts)
        self.prompts = fitting(prompts, self.target.context_length, options.max_new_tokens)
        self.left_out = len(prompts) - len(self.prompts)
        self.samples = _read_texts(options, self.target)

    def measure(self, progress: Progress) -> tuple[HeadAccuracy, list[Setting]]:
        """Accuracy of the heads, and acceptance with each tree at each temperature."""
        wanted = [(tree, temperature) for tree in self.engines for temperature in self.options.temperatures]
        greedy = (wanted[0][0], 0.0)
        runs = list(dict.fromkeys(wanted if self.samples else [*wanted, greedy]))
        progress.begin(len(runs) + 1)
        written = {(tree, t): self._continue(tree, t, progress) for tree, t in runs}
        samples = self.samples or [as_sample(one.prompt.tokens, one.tokens) for one in written[greedy]]
        done = progress.part(1, "accuracy of the heads")
        heads = measure_heads(self.target, self.draft, text_batches(self.target, samples), done)
        return heads, [
            self._setting(tree, temperature, written[tree, temperature]) for tree, temperature in wanted
        ]

    def report(self, heads: HeadAccuracy, settings: Sequence[Setting]) -> Report:
        """Put the numbers together with where they come from."""
        options, system = self.options, str(self.draft.config.model_type)
        provenance = Provenance.here(options.command, self.target.device, self.target.dtype)
        target, draft = options.target or _EMBEDDED, options.draft or _EMBEDDED
        left_out = f" ({self.left_out} more do not fit into the context)" if self.left_out else ""
        prompts = f"{len(self.prompts)} prompts, {options.max_new_tokens} new tokens each"
        texts = "what the target writes after the prompts at temperature 0"
        if self.samples:
            texts = f"{len(self.samples)} texts as written in {', '.join(options.texts)}"
        facts = {"target": target, "draft": draft, "system": system_name(system)}
        facts |= {"prompts": prompts + left_out, "heads measured on": texts}
        results = {"heads": heads.to_dict(), "settings": [setting.to_dict() for setting in settings]}
        models = f"target {target}, draft {draft}; {prompts}; bars: one standard error over prompts"
        picture = Picture(
            "Evaluation", lambda: draw(heads, settings, facts["system"], models, provenance.line)
        )
        note = ("±", "one standard error over prompts or texts")
        return Report(
            "How good the draft is", provenance, list(facts.items()), make_tables(heads, settings), [picture],
            facts | {"system": system} | results, [note],
        )  # fmt: skip

    def _continue(self, tree: str, temperature: float, progress: Progress) -> list[Continuation]:
        """What is written after the prompts."""
        options = self.options
        done = progress.part(1, f"{tree}, temperature {temperature:g}")
        return continue_prompts(
            self.engines[tree], self.prompts, options.max_new_tokens, temperature, options.batch_size,
            options.seed, done,
        )  # fmt: skip

    def _setting(self, tree: str, temperature: float, written: Sequence[Continuation]) -> Setting:
        drafter = self.engines[tree].drafter
        assert drafter is not None
        kinds = count_kinds(written, self.target.tokenizer)
        groups, positions = count_groups(written), count_positions(written)
        return Setting(tree, drafter.max_nodes - 1, temperature, groups, kinds, positions)


def choose_prompts(
    files: Sequence[str], target: TargetModel, limit: int | None, embedded: str = DEVELOPMENT
) -> list[TaskPrompt]:
    """The prompts of files, or the embedded ones to develop with, which nothing is judged by.

    Args:
        limit: prompts at most, spread over the groups.
        embedded: another group of the embedded prompts.

    Raises:
        UserError: the target has no tokenizer, or a file cannot be used.
    """
    tokenizer: Any = target.tokenizer
    if tokenizer is None:
        raise UserError("the target has no tokenizer, which prompts need")
    if files:
        return read_prompts(files, tokenizer, limit)
    prompts = read_prompts([assets.HELD_OUT_PROMPTS], tokenizer)
    return [prompt for prompt in prompts if prompt.group == embedded][:limit]


def _read_texts(options: EvaluateOptions, target: TargetModel) -> tuple[Sample, ...] | None:
    if not options.texts:
        return None
    tokenizer: Any = target.tokenizer
    texts = FileTexts(options.texts, tokenizer, target.eos_token_ids)
    return tuple(islice(texts, options.max_prompts))
