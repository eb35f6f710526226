"""Run the recipe: from the Python source on this machine to a target, its draft and a model card.

Five stages hand over by files in a work directory, so that an interrupted run goes on where it stopped:
corpus and tokenizer, target, text written by the target, draft, card. Stages that are done are not run again.
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

from clover.api import load
from clover.data import Sample
from clover.drafts import RecallDraft
from clover.files import output_directory, read_json, write_json, write_text, written
from clover.recipe.card import DraftFacts, TargetFacts, made_here, write_cards
from clover.recipe.corpus import Corpus, Document, Source, prompts_from, read_corpus
from clover.recipe.display import counting, pretrain_progress
from clover.recipe.pretrain import PretrainConfig, mean_loss, pretrain, target_config
from clover.recipe.tokens import token_stream, train_tokenizer
from clover.recipe.tree import likely_paths
from clover.regenerate import RegenerateConfig, read_regenerated, regenerate
from clover.target import TargetModel
from clover.train import TrainConfig, checkpoint_path, train

CONTEXT = 1024
_TARGET_SHARE, _WRITE_SHARE, _DRAFT_SHARE = 0.55, 0.1, 0.35
_DRAFT_LR, _CORPUS_SHARE = 2e-3, 1
_WINDOW = 256  # tokens of a text the draft is trained on
_BATCH_TOKENS = 512  # small steps learn more from the same text (docs/log.md)
_TREE_NODES = 8  # the fastest size on two CPU cores (`clover tune`)
_DEMO_PROMPTS, _DEVELOPMENT_PROMPTS, _WRITE_PROMPTS = 12, 24, 6000


@dataclass(frozen=True)
class RecipeOptions:
    """What the user of the recipe chooses.

    Args:
        output: directory that gets `target/`, `draft/`, `held_out_prompts.json`, `facts.json` and a card.
        work: directory for what the stages hand over; kept, so that the run can go on or be looked at.
        minutes: budget of all training and writing together.
        device: "cpu" or "cuda"; a GPU when there is one if None.
        overwrite: replace `output` if it exists.
        keep: what an earlier run put into its output; its target is kept, and all the time goes to text and draft.
    """

    output: Path
    work: Path
    minutes: float = 175.0
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
    console.print("[bold]1/5[/] corpus and tokenizer")
    corpus = read_corpus()
    text = _prepare_text(corpus, options)
    console.print(
        f"    {len(corpus.train)} files, {len(text.train):,} tokens; held out {len(corpus.held_out)} files"
    )
    with output_directory(options.output, overwrite=options.overwrite) as output:
        console.print("[bold]2/5[/] target")
        if options.keep is None:
            facts = _make_target(text, options, device, output / "target", console)
        else:
            facts = _keep_target(options.keep, output / "target")
        target = TargetModel.load(output / "target", dtype="bfloat16", device=device)
        console.print("[bold]3/5[/] text written by the target")
        samples = _write_text(target, corpus.train, options, console)
        console.print("[bold]4/5[/] draft")
        draft = _make_draft(target, samples, text, options, output / "draft", console)
        console.print("[bold]5/5[/] tree and card")
        prompts = _held_out_prompts(corpus.held_out, options.keep)
        write_json(output / "held_out_prompts.json", prompts)
        _name_tree(output, prompts["development"], device)
        sources = _all_sources(corpus.sources, options.keep)
        write_cards(output, sources, facts, draft, prompts["development"], device)


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
    """Train the target, save it as bf16 with its tokenizer, and measure the saved weights on held-out files."""
    torch.manual_seed(0)
    tokenizer = text.tokenizer
    end: Any = tokenizer.eos_token_id
    model: Any = LlamaForCausalLM(target_config(len(tokenizer), CONTEXT, end))
    model.to(device)
    config = PretrainConfig(minutes=options.minutes_for(_TARGET_SHARE))
    moment = None
    with pretrain_progress(console) as show:
        for moment in pretrain(model, text.train, config, options.work / "target.state"):
            show(moment)
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
        made=made_here(device),
        command=options.command,
    )


def _keep_target(keep: Path, output: Path) -> TargetFacts:
    """Take over the target of an earlier run, and what that run wrote down about it."""
    with written(output):
        shutil.copytree(keep / "target", output)
    return TargetFacts(**read_json(keep / "facts.json")["target"])


def _all_sources(sources: Sequence[Source], keep: Path | None) -> list[Source]:
    """What target or draft were trained on: with a kept target also what this machine has no more."""
    if keep is None:
        return list(sources)
    kept = [Source(**source) for source in read_json(keep / "facts.json")["sources"]]
    known = {(source.name, source.version) for source in kept}
    new = [source for source in sources if (source.name, source.version) not in known]
    return sorted([*kept, *new], key=lambda source: -source.bytes)


def _write_text(
    target: TargetModel, documents: Sequence[Document], options: RecipeOptions, console: Console
) -> list[Sample]:
    """Let the target continue each opening of a training file twice, greedily and by sampling."""
    tokenizer = target.tokenizer
    assert tokenizer is not None
    openings = [tokenizer(prompt)["input_ids"][-48:] for prompt in prompts_from(documents, _WRITE_PROMPTS)]
    even = len(openings) // 2 * 2  # temperatures alternate, so the second time starts one text later
    samples = [_opening(tokens) for tokens in [*openings[:even], *openings[1:even], *openings[:1]]]
    config = RegenerateConfig(
        max_length=_WINDOW, prompt_tokens=48, batch_size=64, max_minutes=options.minutes_for(_WRITE_SHARE)
    )
    path, done = options.work / "written.jsonl", options.work / "written.done"
    if done.exists():
        return read_regenerated(path)
    with counting(console, len(samples)) as show:
        texts = regenerate(target, samples, config, path, show)
    write_text(done, f"{len(texts)} texts\n")
    return texts


def _opening(tokens: list[int]) -> Sample:
    """A text whose opening is given and whose one learnt token stands for all that the target will write."""
    learnt = torch.zeros(len(tokens) + 1, dtype=torch.bool)
    learnt[-1] = True
    return Sample(torch.tensor([*tokens, 0], dtype=torch.int32), learnt)


def _corpus_windows(stream: Tensor, tokens: int) -> list[Sample]:
    """About `tokens` tokens of the corpus in windows that start anywhere; all of each is learnt."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(len(stream) - _WINDOW, (tokens // _WINDOW,), generator=generator).tolist()
    learnt = torch.ones(_WINDOW, dtype=torch.bool)
    return [Sample(stream[start : start + _WINDOW].int(), learnt) for start in starts]


def _make_draft(
    target: TargetModel,
    samples: list[Sample],
    text: _Text,
    options: RecipeOptions,
    output: Path,
    console: Console,
) -> DraftFacts:
    """Train the draft on what the target wrote, and on some of the corpus beside it; put it into `output`."""
    written_tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    corpus_tokens = _CORPUS_SHARE * written_tokens
    config = TrainConfig(
        output=str(options.work / "draft"),
        target="the embedded target",
        data=("text written by the target", "corpus"),
        max_length=_WINDOW,
        batch_tokens=_BATCH_TOKENS,
        max_minutes=options.minutes_for(_DRAFT_SHARE),
        lr=_DRAFT_LR,
        dtype="bf16",
        loss=RecallDraft.default_loss,
    )
    finished = options.work / "draft"
    if not finished.exists():
        torch.manual_seed(0)
        draft = RecallDraft.from_target(target)
        texts = [*samples, *_corpus_windows(text.train, corpus_tokens)]
        resume = checkpoint_path(config).exists()
        result = train(config, target, texts, draft, resume=resume, console=console)
        if not result.finished:
            raise KeyboardInterrupt
        facts = DraftFacts(
            texts=len(samples),
            tokens=written_tokens,
            corpus_tokens=corpus_tokens,
            steps=result.steps,
            minutes=round(result.seconds / 60, 1),
            parameters=draft.num_parameters(),
            made=made_here(str(target.device)),
            command=options.command,
        )
        write_json(options.work / "draft.json", asdict(facts))
    with written(output):
        shutil.copytree(finished, output, ignore=shutil.ignore_patterns("training_*"))
    return DraftFacts(**read_json(options.work / "draft.json"))


def _name_tree(output: Path, prompts: Sequence[str], device: str) -> None:
    """Put the best tree of a few nodes for development prompts, greedy and sampled, into the draft's configuration."""
    model = load(output / "target", output / "draft", method="draft", dtype="float32", device=device)
    requests = [model.request(p, max_new_tokens=128, temperature=t) for p in prompts for t in (0.0, 0.8)]
    file = output / "draft" / "config.json"
    write_json(file, read_json(file) | {"tree": likely_paths(model.engine, requests)[:_TREE_NODES]})


def _held_out_prompts(documents: Sequence[Document], keep: Path | None) -> dict[str, list[str]]:
    """Openings of held-out files: some to tune on, others for the demo, which nothing was chosen by.

    With a target that is kept its prompts are too, so that figures stay comparable.
    """
    if keep is not None:
        return read_json(keep / "held_out_prompts.json")
    found = prompts_from(documents, _DEMO_PROMPTS + _DEVELOPMENT_PROMPTS)
    return {"prompts": found[:_DEMO_PROMPTS], "development": found[_DEMO_PROMPTS:]}
