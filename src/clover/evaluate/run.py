"""An evaluation from its options to the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from clover import assets
from clover.api import load
from clover.data import Batch, Batches, Sample, read_samples
from clover.data.tasks import TaskPrompt, read_prompts
from clover.engine import Engine
from clover.errors import UserError
from clover.evaluate.acceptance import Continuation, SettingResult, continue_prompts, summarize
from clover.evaluate.accuracy import HeadAccuracy, measure_heads
from clover.evaluate.picture import save_picture
from clover.evaluate.progress import EvaluationProgress
from clover.evaluate.report import EvaluationReport
from clover.evaluate.table import print_report
from clover.files import check_output_file, write_json
from clover.pictures import check_picture
from clover.provenance import command_line, machine
from clover.target import TargetModel
from clover.tree import parse_tree

_EMBEDDED, _OWN_TREE = "embedded", "own tree"
_DEVELOPMENT = "development"
_WINDOW, _BATCH_TOKENS = 2048, 16384  # tokens of a text and of a batch of texts that are run at once
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
        json, picture: files for the figures and for the picture, if wanted.
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
        flags = {"trees": "tree", "temperatures": "temperature"}
        return command_line("evaluate", self, files="files", renamed=flags)

    def check(self) -> None:
        """Raise a UserError, before any time is spent, for what would fail at the end."""
        if self.max_new_tokens < _FEWEST_NEW_TOKENS:
            raise UserError(
                f"max_new_tokens is {self.max_new_tokens}; heads are measured on 2 tokens or more"
            )
        if self.picture is not None:
            check_picture(self.picture)
        if self.json is not None:
            check_output_file(self.json)


@dataclass(frozen=True)
class _Setting:
    tree: str | None
    temperature: float


def run_evaluate(
    options: EvaluateOptions, console: Console | None = None, errors: Console | None = None
) -> EvaluationReport:
    """Measure, print the tables, and write the JSON file and the picture.

    Args:
        options: what to measure.
        console: for the tables; standard output when left out.
        errors: for the progress; standard error when left out.

    Raises:
        UserError: an option, a file or a model cannot be used.
    """
    console = console or Console()
    started = time.monotonic()
    options.check()
    with EvaluationProgress(errors or Console(stderr=True)) as progress:
        progress.say("loading target and draft")
        evaluation = _Evaluation(options, progress)
        heads, texts, settings = evaluation.measure()
    report = evaluation.report(heads, texts, settings, time.monotonic() - started)
    print_report(console, report)
    if options.json is not None:
        write_json(options.json, report.to_dict())
    if options.picture is not None:
        save_picture(report, options.picture)
    for path in (options.json, options.picture):
        if path is not None:
            console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    return report


class _Evaluation:
    """The models, the prompts and the texts of one run."""

    def __init__(self, options: EvaluateOptions, progress: EvaluationProgress):
        self.options, self.progress = options, progress
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
        self.engines: dict[str | None, Engine] = {
            tree: Engine(self.target, draft, parse_tree(tree)) for tree in options.trees
        } or {None: model.engine}
        prompts = choose_prompts(options.files or options.texts, self.target, options.max_prompts)
        room = self.target.context_length - options.max_new_tokens
        self.prompts = [prompt for prompt in prompts if len(prompt.tokens) <= room]
        self.left_out = len(prompts) - len(self.prompts)
        if not self.prompts:
            raise UserError(
                f"no prompt leaves room for {options.max_new_tokens} new tokens in the target's context of "
                f"{self.target.context_length}; lower --max-new-tokens or give shorter prompts"
            )
        self.texts = _read_texts(options, self.target)

    def measure(self) -> tuple[HeadAccuracy, str, tuple[SettingResult, ...]]:
        """Accuracy of the heads, on what they were measured, and acceptance in all settings."""
        options = self.options
        settings = [_Setting(tree, t) for tree in self.engines for t in options.temperatures]
        batches = None if self.texts is None else self._batches(self.texts)
        per_setting = len(self.prompts) * options.max_new_tokens
        texts = per_setting if batches is None else sum(batch.tokens.numel() for batch in batches)
        own_run = batches is None and 0.0 not in options.temperatures
        self.progress.begin(per_setting * (len(settings) + own_run) + texts)
        results = [(setting, *self._continue(setting)) for setting in settings]
        if batches is None:
            greedy = [found for setting, _, found in results if setting.temperature == 0]
            written_texts = greedy[0] if greedy else self._continue(_Setting(settings[0].tree, 0.0))[1]
            batches = self._batches([_sample(one) for one in written_texts])
        self.progress.say("accuracy of the heads")
        heads = measure_heads(self.target, self.draft, batches, self.progress.advance)
        summaries = [
            summarize(setting.tree or _OWN_TREE, nodes, setting.temperature, found, self.target.tokenizer)
            for setting, nodes, found in results
        ]
        return heads, self._describe_texts(), tuple(summaries)

    def report(
        self, heads: HeadAccuracy, texts: str, settings: tuple[SettingResult, ...], seconds: float
    ) -> EvaluationReport:
        """Put the figures together with where they come from."""
        options = self.options
        return EvaluationReport(
            command=options.command,
            target=options.target or _EMBEDDED,
            draft=options.draft or _EMBEDDED,
            system=str(self.draft.config.model_type),
            device=self.target.device.type,
            machine=machine(self.target.device),
            dtype=str(self.target.dtype).removeprefix("torch."),
            prompts=len(self.prompts),
            left_out=self.left_out,
            max_new_tokens=options.max_new_tokens,
            texts=texts,
            seconds=seconds,
            heads=heads,
            settings=settings,
        )

    def _continue(self, setting: _Setting) -> tuple[int, list[Continuation]]:
        """Nodes of the tree, root excluded, and what was written."""
        self.progress.say(f"{setting.tree or _OWN_TREE}, temperature {setting.temperature:g}")
        engine = self.engines[setting.tree]
        assert engine.drafter is not None
        found = continue_prompts(
            engine,
            self.prompts,
            self.options.max_new_tokens,
            setting.temperature,
            self.options.batch_size,
            self.options.seed,
            self.progress.advance,
        )
        return engine.drafter.max_nodes - 1, found

    def _batches(self, samples: Sequence[Sample]) -> list[Batch]:
        window = min(_WINDOW, self.target.context_length)
        return list(Batches(samples, window, max(_BATCH_TOKENS, window), seed=0).epoch())

    def _describe_texts(self) -> str:
        if self.texts is not None:
            count = f"{len(self.texts)} text{'s' if len(self.texts) > 1 else ''}"
            return f"{count} as written in {', '.join(self.options.texts)}"
        return "what the target writes after the prompts at temperature 0"


def choose_prompts(files: Sequence[str], target: TargetModel, limit: int) -> list[TaskPrompt]:
    """The prompts of files, or the embedded ones to develop with, which nothing is judged by.

    Args:
        limit: prompts at most, spread over the groups.

    Raises:
        UserError: the target has no tokenizer, or a file cannot be used.
    """
    tokenizer: Any = target.tokenizer
    if tokenizer is None:
        raise UserError("the target has no tokenizer, which prompts need")
    if files:
        return read_prompts(files, tokenizer, limit)
    prompts = read_prompts([assets.HELD_OUT_PROMPTS], tokenizer)
    return [prompt for prompt in prompts if prompt.group == _DEVELOPMENT][:limit]


def _read_texts(options: EvaluateOptions, target: TargetModel) -> tuple[Sample, ...] | None:
    if not options.texts:
        return None
    tokenizer: Any = target.tokenizer
    texts = read_samples(options.texts, tokenizer, target.eos_token_ids)
    return texts.samples[: options.max_prompts]


def _sample(continuation: Continuation) -> Sample:
    prompt, new = continuation.prompt.tokens, continuation.tokens
    tokens = torch.tensor([*prompt, *new], dtype=torch.int32)
    return Sample(tokens, torch.arange(len(tokens)) >= len(prompt))
