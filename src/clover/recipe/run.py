"""All stages of the recipe: corpus and tokenizer, target, text that the target writes, the drafts, their cards.

Each stage leaves what it made in the work directory, where an interrupted run goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.generation.configuration_utils import GenerationConfig

from clover.files import output_directory, read_json, write_json, written
from clover.recipe.card import TargetFacts, write_cards
from clover.recipe.corpus import Corpus, Document, Source, prompts_from, read_corpus
from clover.recipe.drafts import SYSTEMS, keep_draft, made_here, train_draft
from clover.recipe.pretrain import PretrainConfig, mean_loss, pretrain, target_config
from clover.recipe.text import write_texts
from clover.recipe.tokens import token_stream, train_tokenizer
from clover.report.progress import Progress
from clover.target import TargetModel

CONTEXT = 1024
_TARGET_SHARE, _WRITE_SHARE, _DRAFTS_SHARE = 0.4, 0.1, 0.5
_DEMO_PROMPTS, _DEVELOPMENT_PROMPTS = 12, 24


@dataclass(frozen=True)
class RecipeOptions:
    """What the user of the recipe chooses.

    Args:
        output: directory that gets `target/`, a directory per draft, `held_out_prompts.json`, `facts.json` and a card.
        work: directory for what the stages hand over; kept, so that the run can go on or be looked at.
        minutes: budget of all training and writing together.
        device: "cpu" or "cuda"; a GPU when there is one if None.
        overwrite: replace `output` if it exists.
        keep: what an earlier run put into its output; its target is kept, and all the time goes to text and drafts.
    """

    output: Path
    work: Path
    minutes: float = 240.0
    device: str | None = None
    overwrite: bool = False
    keep: Path | None = None

    @property
    def command(self) -> str:
        """The command that repeats the run, for the card."""
        kept = "" if self.keep is None else " --keep-target DIR"
        return f"clover recipe --output DIR --minutes {self.minutes:g}{kept}"

    def minutes_for(self, share: float) -> float:
        """The part of the budget that a stage with this share gets; shares of stages left out go to the others."""
        return self.minutes * share / (1.0 if self.keep is None else 1.0 - _TARGET_SHARE)


@dataclass(frozen=True)
class _Text:
    """The corpus as the later stages need it."""

    tokenizer: PreTrainedTokenizerFast
    train: Tensor  # Short [tokens]
    held_out: Tensor  # Short [tokens]


def run_recipe(options: RecipeOptions) -> None:
    """Run all stages and put the result into `options.output`, whole or not at all."""
    console = Console(stderr=True)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    with written(options.work):
        options.work.mkdir(parents=True, exist_ok=True)
    with output_directory(options.output, overwrite=options.overwrite) as output:
        console.print("[bold]1/5[/] corpus and tokenizer")
        corpus = read_corpus()
        text = _prepare_text(corpus, options)
        console.print(f"    {len(corpus.train)} files, {len(text.train):,} tokens")
        console.print("[bold]2/5[/] target")
        facts = _make_target(text, options, device, output / "target", console)
        target = TargetModel.load(output / "target", dtype="bfloat16", device=device)
        console.print("[bold]3/5[/] text written by the target")
        with Progress(console) as progress:
            minutes = options.minutes_for(_WRITE_SHARE)
            samples = write_texts(target, corpus.train, options.work, minutes, progress)
        drafts = []
        for system, share in SYSTEMS.items():
            console.print(f"[bold]4/5[/] {system}")
            minutes = options.minutes_for(_DRAFTS_SHARE * share)
            drafts.append(
                train_draft(
                    system, target, samples, text.train, options.work, minutes, options.command, console
                )
            )
        console.print("[bold]5/5[/] trees and card")
        prompts = _held_out_prompts(corpus.held_out, options.keep)
        write_json(output / "held_out_prompts.json", prompts)
        for draft in drafts:
            place = output / draft.system
            keep_draft(options.work / draft.system, place, output / "target", prompts["development"], device)
        sources = _all_sources(corpus.sources, options.keep)
        write_cards(output, sources, facts, drafts, prompts["development"], device)


def _prepare_text(corpus: Corpus, options: RecipeOptions) -> _Text:
    work = options.work
    stream, folder = work / "corpus.safetensors", work / "tokenizer"
    if not stream.exists():
        with written(work):
            if options.keep is None:
                tokenizer = train_tokenizer(corpus.train, CONTEXT)
            else:
                tokenizer = PreTrainedTokenizerFast.from_pretrained(options.keep / "target")
            tokenizer.save_pretrained(folder)
            tokens = {
                "train": token_stream(tokenizer, corpus.train),
                "held_out": token_stream(tokenizer, corpus.held_out),
            }
            partial = stream.with_suffix(".partial")
            save_file(tokens, partial)
            os.replace(partial, stream)
    tokens = load_file(stream)
    return _Text(PreTrainedTokenizerFast.from_pretrained(folder), tokens["train"], tokens["held_out"])


def _make_target(
    text: _Text, options: RecipeOptions, device: str, output: Path, console: Console
) -> TargetFacts:
    """Train the target, save it as bf16 and measure it on held-out files; or keep an earlier one."""
    if options.keep is not None:
        with written(output):
            shutil.copytree(options.keep / "target", output)
        return TargetFacts(**read_json(options.keep / "facts.json")["target"])
    torch.manual_seed(0)
    tokenizer = text.tokenizer
    end: Any = tokenizer.eos_token_id
    model: Any = LlamaForCausalLM(target_config(len(tokenizer), CONTEXT, end))
    model.to(device)
    config = PretrainConfig(minutes=options.minutes_for(_TARGET_SHARE))
    moment = None
    with Progress(console) as progress:
        progress.begin(1.0)
        for moment in pretrain(model, text.train, config, options.work / "target.state"):
            progress.reach(moment.share, f"step {moment.step}, loss {moment.loss:.3f}")
    assert moment is not None
    model.to(torch.bfloat16)
    loss = mean_loss(model, text.held_out)
    console.print(f"    held-out loss {loss:.3f} nats per token")
    model.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end)
    with written(output):
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    return TargetFacts(
        steps=moment.step,
        tokens=moment.tokens,
        training_loss=moment.loss,
        minutes=round(moment.seconds / 60, 1),
        held_out_loss=loss,
        parameters=model.num_parameters(),
        corpus_tokens=len(text.train),
        made=made_here(model.device, torch.bfloat16),
        command=options.command,
    )


def _all_sources(sources: Sequence[Source], keep: Path | None) -> list[Source]:
    """What target or drafts were trained on: with a kept target also what this machine has no more."""
    if keep is None:
        return list(sources)
    kept = [Source(**source) for source in read_json(keep / "facts.json")["sources"]]
    known = {(source.name, source.version) for source in kept}
    new = [source for source in sources if (source.name, source.version) not in known]
    return sorted([*kept, *new], key=lambda source: -source.bytes)


def _held_out_prompts(documents: Sequence[Document], keep: Path | None) -> dict[str, list[str]]:
    """Openings of held-out files: some to tune on, others for the demo, which nothing was chosen by.

    With a target that is kept its prompts are too, so that results stay comparable.
    """
    if keep is not None:
        return read_json(keep / "held_out_prompts.json")
    found = prompts_from(documents, _DEMO_PROMPTS + _DEVELOPMENT_PROMPTS)
    return {"prompts": found[:_DEMO_PROMPTS], "development": found[_DEMO_PROMPTS:]}
