"""Stage `target`: tokenizer, corpus and a Llama trained on it, by the functions of `experiments.recipes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.generation.configuration_utils import GenerationConfig

from benchmarks.lab.sizes import Shape
from benchmarks.lab.workplace import OutOfTime, Workplace
from clover.files import output_directory, write_json, write_text
from experiments.recipes.corpus import Corpus, prompts_from, read_corpus
from experiments.recipes.pretrain import PretrainProgress, mean_loss, pretrain
from experiments.recipes.tokens import token_stream, train_tokenizer

_CONTEXT = 1024


def train_target(place: Workplace) -> None:
    """Train the target into `target/`, and write the openings it will continue and the prompts to measure on."""
    if place.facts("target") is not None:
        return
    tokenizer, stream, held_out = _text(place)
    shape = place.sizes.target
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(_config(shape, tokenizer))
    model.to(place.device)
    place.say(f"target: {model.num_parameters():,} parameters, {len(stream):,} tokens of text")
    last = _train(place, model, stream)
    model.to(torch.bfloat16)
    loss = mean_loss(model, held_out)
    _save(place.folder / "target", model, tokenizer)
    place.finish(
        "target",
        {
            "parameters": model.num_parameters(),
            "steps": last.step,
            "tokens": last.tokens,
            "minutes": round(last.seconds / 60, 2),
            "training_loss": last.loss,
            "held_out_loss": loss,
            "corpus_tokens": len(stream),
        },
    )
    place.say(f"target: held-out loss {loss:.3f} nats per token after {last.tokens:,} tokens")


def _text(place: Workplace) -> tuple[PreTrainedTokenizerFast, Tensor, Tensor]:
    """Tokenizer, and the two parts of the corpus, Short [tokens]."""
    folder, file = place.folder / "tokenizer", place.folder / "corpus.safetensors"
    if not file.exists():
        place.say("target: corpus and tokenizer")
        corpus = read_corpus()
        train = corpus.train[: place.sizes.files]
        tokenizer = train_tokenizer(train, _CONTEXT, place.sizes.target.vocabulary)
        with output_directory(folder, overwrite=True) as new:
            tokenizer.save_pretrained(new)
        _write_prompts(place, corpus, tokenizer)
        held_out = corpus.held_out[: place.sizes.files]
        parts = {"train": token_stream(tokenizer, train), "held_out": token_stream(tokenizer, held_out)}
        partial = file.with_suffix(".partial")
        save_file(parts, partial)
        partial.replace(file)
    parts = load_file(file)
    return PreTrainedTokenizerFast.from_pretrained(folder), parts["train"], parts["held_out"]


def _write_prompts(place: Workplace, corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    """Ends of openings of training files, as often as texts are wanted, and held-out prompts."""
    sizes = place.sizes
    openings = prompts_from(corpus.train, sizes.texts)
    chosen = [openings[i % len(openings)] for i in range(sizes.texts)]
    tokens = [tokenizer(text)["input_ids"][-sizes.prompt_tokens :] for text in chosen]
    lines = [json.dumps({"prompt": tokenizer.decode(part)}) + "\n" for part in tokens]
    write_text(place.folder / "openings.jsonl", "".join(lines))
    write_json(place.folder / "prompts.json", {"prompts": prompts_from(corpus.held_out, sizes.prompts)})


def _config(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> Any:
    end: Any = tokenizer.eos_token_id
    config = shape.config(shape.layers, _CONTEXT, end)
    config.vocab_size = len(tokenizer)  # a small corpus has fewer merges than were asked for
    return config


def _train(place: Workplace, model: Any, stream: Tensor) -> PretrainProgress:
    sizes = place.sizes
    moments = pretrain(
        model, stream, place.folder / "target.state", sizes.pretrain_minutes, sizes.pretrain_tokens
    )
    last, shown = None, 0.0
    try:
        for last in moments:
            if last.share - shown >= 0.05:
                shown = last.share
                speed = last.tokens / last.seconds
                place.say(f"target: {last.share:.0%}, loss {last.loss:.3f}, {speed:,.0f} tokens/s")
            if place.nearly_over:
                raise OutOfTime
    finally:
        moments.close()  # leaves a checkpoint where there is more to do
    assert last is not None
    return last


def _save(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    end: Any = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end)
    with output_directory(folder, overwrite=True) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
