"""A trained draft as the content of a package: bfloat16 safetensors, config.json, and a card with its origin."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clover.drafts import load_usable
from clover.errors import UserError
from clover.files import check_output_directory, output_directory, write_text
from clover.measure.report.statistics import Estimate
from clover.measure.systems import system_name
from clover.target import TargetModel, norms_fingerprint, tensors_fingerprint, tokens_fingerprint
from clover.train.record import RECORD_FILE, read_record
from clover.validation import read_json
from experiments.recipes.card import render
from experiments.recipes.options import ReleaseOptions
from experiments.recipes.prompts import PromptSource, accept_prompts


@dataclass(frozen=True)
class TauRow:
    """A line of a card: the τ of a tree on one kind of text, and how the target ran."""

    text: str
    tree: str
    temperature: float
    target: str
    tau: str


def release(options: ReleaseOptions) -> None:
    """Write the draft's directory; UserError if the draft, its texts or its measurements cannot be released."""
    check_output_directory(options.output, options.overwrite)
    sources = [source for file in options.data for source in permissive_sources(file)]
    record, written = read_record(options.draft), read_json(options.draft / RECORD_FILE)
    measured = [read_json(file) for file in options.taus]
    taus = [row for one, file in zip(measured, options.taus, strict=True) for row in tau_rows(one, file)]
    target = TargetModel.load(options.target, torch.bfloat16)
    draft: Any = load_usable(options.draft, target)
    config = draft.config
    if config.target_weights != tensors_fingerprint(target):
        raise UserError(
            f"{options.draft} was not trained for the weights of {options.target}; name its own target"
        )
    config.target_name = options.name
    config.target_norms, config.target_tokens = (
        norms_fingerprint(target),
        tokens_fingerprint(target.tokenizer),
    )
    facts = {
        "model": options.name,
        "model_licence": options.model_licence,
        "weights": config.target_weights,
        "system": system_name(config.model_type),
        "parameters": sum(weight.numel() for weight in draft.parameters()),
        "vocabulary": config.draft_vocab_size or target.vocab_size,
        "record": record,
        "accuracy": (record.result.validation or record.result.training).accuracy,
        "made": _origin(written.get("provenance")),
        "longest": written.get("config", {}).get("max_length"),
        "notes": options.notes,
        "taus": taus,
        "tau_origin": "; ".join(dict.fromkeys(_origin(one.get("provenance")) for one in measured)),
        "sources": sources,
    }
    with output_directory(options.output, options.overwrite) as folder:
        draft.to(torch.bfloat16).save_pretrained(folder)
        write_text(folder / "README.md", render("release.md", facts))


def permissive_sources(file: Path) -> list[PromptSource]:
    """Return where the rows of a training's file come from; UserError for a licence that is not permissive."""
    with tempfile.TemporaryDirectory() as folder:
        found = [one for one in accept_prompts(file, Path(folder) / "accepted.jsonl") if one.rows]
    if other := [source for source in found if not source.used]:
        named = ", ".join(f"{source.name} ({source.licence})" for source in other)
        raise UserError(
            f"{file} has rows whose licence is not permissive: {named}; a draft of them is not released"
        )
    return found


def tau_rows(measured: dict[str, Any], file: Path) -> list[TauRow]:
    """Return the lines of what `clover evaluate --json` wrote; UserError if the file is something else."""
    try:
        words = measured["provenance"]["command"].split()
        target = "int8" if "int8" in words else measured["provenance"]["dtype"]
        target += ", without copies from the text" if "--no-copies" in words else ""
        length = measured["prompts"].partition(", ")[2]
        return [
            TauRow(group["group"], one["tree"], one["temperature"], target, _tau(group, length))
            for one in measured["settings"]
            for group in one["groups"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} was not written by clover evaluate --json: {error} is missing") from error


def _tau(group: dict[str, Any], length: str) -> str:
    return f"{Estimate(group['tau'], group['tau_error']).text(2)} ({group['prompts']} prompts, {length})"


def _origin(provenance: dict[str, Any] | None) -> str:
    """Return when, where and by which revision something was made."""
    if not provenance:
        return "not recorded"
    date, at = str(provenance.get("date"))[:10], provenance.get("revision")
    return f"{date}, {provenance.get('machine')}, {provenance.get('dtype')}, revision {at}"
