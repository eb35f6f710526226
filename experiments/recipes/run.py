"""All stages of the recipe: corpus and tokenizer, target, text that the target writes, the drafts, their card.

Each stage leaves what it made in the work directory, where an interrupted run goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.generation.configuration_utils import GenerationConfig

from clover.data import Sample
from clover.errors import UserError
from clover.files import checksum, locked_directory, output_directory, raise_on_write_error, write_json
from clover.measure.report.progress import Progress
from clover.target import TargetModel
from clover.validation import read_model
from clover.write import WriteConfig, Writer
from experiments.recipes.begun import BEGUN, check_begun
from experiments.recipes.card import write_card
from experiments.recipes.corpus import Source, prompts_from, read_corpus
from experiments.recipes.drafts import SYSTEMS, WINDOW, DraftFacts, keep_draft, made_here, train_draft
from experiments.recipes.options import RecipeOptions
from experiments.recipes.pretrain import TargetFacts, mean_loss, pretrain, target_config
from experiments.recipes.text import corpus_windows, learnt_tokens, openings, read_texts
from experiments.recipes.tokens import token_stream, train_tokenizer

_CONTEXT = 1024
_TARGET_SHARE, _WRITE_SHARE, _DRAFTS_SHARE = 0.4, 0.1, 0.5
_DEMO_PROMPTS, _DEVELOPMENT_PROMPTS = 12, 24
_OPENING_TOKENS, _OPENINGS, _WRITTEN_TOGETHER = 48, 6000, 64


@dataclass(frozen=True)
class _Facts:
    """What is read of the `facts.json` of an earlier run."""

    target: TargetFacts
    sources: list[Source]


@dataclass(frozen=True)
class _Prompts:
    """Held-out prompts: nothing is chosen by the first, the others are to tune on."""

    prompts: list[str]
    development: list[str]


@dataclass(frozen=True)
class _Kept:
    """The output of an earlier run, whose target is kept."""

    target: Path
    facts: _Facts
    prompts: _Prompts

    @classmethod
    def read(cls, output: Path) -> _Kept:
        """UserError if a part of it is missing or damaged."""
        facts = read_model(output / "facts.json", _Facts)
        prompts = read_model(output / "held_out_prompts.json", _Prompts)
        if not (output / "target").is_dir():
            raise UserError(f"{output} has no target to keep; give the output of an earlier run")
        return cls(output / "target", facts, prompts)


def run_recipe(options: RecipeOptions) -> None:
    """Run all stages and put the result into `options.output`, whole or not at all.

    The output gets `target/`, a directory per draft, `held_out_prompts.json`, `facts.json` and a card, `README.md`.
    UserError, before anything long, if an option cannot be used or the work directory belongs to another run.
    """
    given = options.keep_target
    kept = None if given is None else _Kept.read(given)
    with (
        locked_directory(options.folder),
        output_directory(options.output, overwrite=options.overwrite) as output,
    ):
        here = {
            "minutes": options.minutes,
            "keep_target": None if given is None else checksum(given / "facts.json"),
        }
        check_begun(options.folder, here)
        write_json(options.folder / BEGUN, here)
        _Recipe(options, output, kept).run()


class _Recipe:
    """The stages, with what they share.

    With `kept` the target, its prompts and its sources are those of an earlier run, and its share of the time goes to
    text and drafts.
    """

    def __init__(self, options: RecipeOptions, output: Path, kept: _Kept | None):
        self.options, self.output, self.work, self.kept = options, output, options.folder, kept
        self.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.console = Console(stderr=True)

    def run(self) -> None:
        """From the corpus to the card."""
        self.console.print("[bold]1/5[/] corpus and tokenizer")
        self.corpus = read_corpus()
        self.tokenizer, self.streams = self._tokens()
        self.console.print(f"    {len(self.corpus.train)} files, {len(self.streams['train']):,} tokens")
        self.console.print("[bold]2/5[/] target")
        facts = self._train_target() if self.kept is None else self._keep_target(self.kept)
        target = TargetModel.load(self.output / "target", dtype="bfloat16", device=self.device)
        self.console.print("[bold]3/5[/] text written by the target")
        texts, drafts = self._texts(target), []
        for system, share in SYSTEMS.items():
            self.console.print(f"[bold]4/5[/] {system}")
            minutes, folder = self._minutes(_DRAFTS_SHARE * share), self.work / system
            drafts.append(train_draft(system, target, texts, folder, minutes, self.console))
        self.console.print("[bold]5/5[/] trees and card")
        self._finish(facts, drafts)

    def _minutes(self, share: float) -> float:
        """Return the part of the budget that a stage with this share gets."""
        return self.options.minutes * share / (1.0 if self.kept is None else 1.0 - _TARGET_SHARE)

    def _tokens(self) -> tuple[PreTrainedTokenizerFast, dict[str, Tensor]]:
        """Tokenizer, and the parts of the corpus, "train" and "held_out", Short [tokens]."""
        file, folder = self.work / "corpus.safetensors", self.work / "tokenizer"
        if not file.exists():
            with raise_on_write_error(self.work):
                if self.kept is None:
                    tokenizer = train_tokenizer(self.corpus.train, _CONTEXT)
                else:
                    tokenizer = PreTrainedTokenizerFast.from_pretrained(self.kept.target)
                tokenizer.save_pretrained(folder)
                parts = {"train": self.corpus.train, "held_out": self.corpus.held_out}
                partial = file.with_suffix(".partial")
                save_file({name: token_stream(tokenizer, part) for name, part in parts.items()}, partial)
                os.replace(partial, file)
        return PreTrainedTokenizerFast.from_pretrained(folder), load_file(file)

    def _keep_target(self, kept: _Kept) -> TargetFacts:
        with raise_on_write_error(self.output):
            shutil.copytree(kept.target, self.output / "target")
        return kept.facts.target

    def _train_target(self) -> TargetFacts:
        """Train the target, save it as bf16 and measure it on held-out files."""
        torch.manual_seed(0)
        end: Any = self.tokenizer.eos_token_id
        model: Any = LlamaForCausalLM(target_config(len(self.tokenizer), _CONTEXT, end))
        model.to(self.device)
        stream, state, moment = self.streams["train"], self.work / "target.state", None
        with Progress(self.console) as progress:
            progress.begin(1.0)
            for moment in pretrain(model, stream, state, self._minutes(_TARGET_SHARE)):
                progress.reach(moment.share, f"step {moment.step}, loss {moment.loss:.3f}")
        assert moment is not None
        model.to(torch.bfloat16)
        loss = mean_loss(model, self.streams["held_out"])
        self.console.print(f"    held-out loss {loss:.3f} nats per token")
        model.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end)
        with raise_on_write_error(self.output):
            model.save_pretrained(self.output / "target")
            self.tokenizer.save_pretrained(self.output / "target")
        return TargetFacts(
            steps=moment.step,
            tokens=moment.tokens,
            training_loss=moment.loss,
            minutes=round(moment.seconds / 60, 1),
            held_out_loss=loss,
            parameters=model.num_parameters(),
            corpus_tokens=len(stream),
            made=made_here(model.device, torch.bfloat16),
            command=self.options.command,
        )

    def _texts(self, target: TargetModel) -> list[Sample]:
        """Let the target continue openings of training files, greedily and by sampling; add as much corpus."""
        prompts = openings(target.tokenizer, self.corpus.train, _OPENING_TOKENS, _OPENINGS) * 2
        config = WriteConfig(
            max_length=WINDOW, batch_size=_WRITTEN_TOGETHER, max_minutes=self._minutes(_WRITE_SHARE)
        )
        file = self.work / "written.jsonl"
        with Progress(self.console) as progress:
            progress.begin(len(prompts))
            Writer(target, config, file).write(prompts, lambda texts, _: progress.reach(texts))
        texts = list(read_texts(target, [file]))
        return [*texts, *corpus_windows(self.streams["train"], learnt_tokens(texts), WINDOW)]

    def _finish(self, target: TargetFacts, drafts: Sequence[DraftFacts]) -> None:
        """Prompts, drafts with their trees, and the card."""
        old: list[Source] = []
        if self.kept is None:
            found = prompts_from(self.corpus.held_out, _DEMO_PROMPTS + _DEVELOPMENT_PROMPTS)
            prompts = _Prompts(found[:_DEMO_PROMPTS], found[_DEMO_PROMPTS:])
        else:
            prompts, old = self.kept.prompts, self.kept.facts.sources
        write_json(self.output / "held_out_prompts.json", asdict(prompts))
        development, place = prompts.development, self.output / "target"
        for system in SYSTEMS:
            keep_draft(self.work / system, self.output / system, place, development, self.device)
        known = {(source.name, source.version) for source in old}
        new = [source for source in self.corpus.sources if (source.name, source.version) not in known]
        sources = sorted([*old, *new], key=lambda source: -source.bytes)
        write_card(self.output, sources, target, drafts, development, self.device, self.options.command)
