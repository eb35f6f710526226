"""Read a draft from a directory or a hub, with errors that say what is wrong with it."""

from __future__ import annotations

import os
from typing import Any

from safetensors import SafetensorError
from transformers import PretrainedConfig

from clover.drafts.base import DraftModel
from clover.drafts.clover2 import Clover2Draft
from clover.errors import UserError, one_line
from clover.target import TargetModel

SYSTEMS: dict[str, type[DraftModel]] = {"clover2": Clover2Draft}


def load_draft(name_or_path: str | os.PathLike[str], target: TargetModel) -> DraftModel:
    """Load a draft in the target's dtype, on its device, and bind it to the target.

    Raises:
        UserError: no draft is there, its files are damaged or incomplete, or it was trained for another target.
    """
    name = os.fspath(name_or_path)
    system = SYSTEMS[_model_type(name)]
    try:
        loaded: Any = system.from_pretrained(
            name, dtype=target.dtype, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"cannot load the draft {name}: {one_line(error)}") from error
    draft, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            raise UserError(
                f"the draft {name} has {kind.replace('_', ' ')}: {sorted(map(str, report[kind]))[0]} …"
            )
    return draft.to(target.device).eval().bind(target)


def _model_type(name: str) -> str:
    try:
        config, _ = PretrainedConfig.get_config_dict(name)
    except (OSError, ValueError) as error:
        raise UserError(f"no draft at {name}: {one_line(error)}") from error
    kind = config.get("model_type")
    if kind not in SYSTEMS:
        raise UserError(
            f"{name} is not a draft: its model_type is {kind!r}, known are {', '.join(sorted(SYSTEMS))}"
        )
    return kind
