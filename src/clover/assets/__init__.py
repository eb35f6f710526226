"""The embedded default, made by `clover recipe`: a small real target and one draft of each of Clover's systems."""

import os
from pathlib import Path

_DEFAULT = Path(__file__).parent / "default"
TARGET = _DEFAULT / "target"
DRAFTS = {system: _DEFAULT / system for system in ("clover1", "clover2", "recall")}
DRAFT = DRAFTS["recall"]
HELD_OUT_PROMPTS = _DEFAULT / "held_out_prompts.json"


def draft_place(draft: str | os.PathLike[str] | None) -> str:
    """Where a draft is that a user names: an embedded one by its system, the default if None, else what was named.

    A directory of that name comes before the embedded draft.
    """
    name = os.fspath(draft or DRAFT)
    return str(DRAFTS[name]) if name in DRAFTS and not Path(name).is_dir() else name
