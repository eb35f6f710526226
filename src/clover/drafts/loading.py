"""Read a draft from a directory or a hub, with errors that say what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from transformers import PretrainedConfig

from clover.drafts.base import DraftModel
from clover.drafts.clover1 import Clover1Draft
from clover.drafts.clover2 import Clover2Draft
from clover.drafts.eagle import EagleDraft
from clover.drafts.eagle3 import Eagle3Draft
from clover.drafts.hydra import HydraDraft
from clover.drafts.lookup import LookupDraft
from clover.drafts.medusa import MedusaDraft
from clover.errors import UserError, one_line
from clover.target import TargetModel

SYSTEMS: dict[str, type[DraftModel]] = {
    "clover1": Clover1Draft,
    "clover2": Clover2Draft,
    "eagle": EagleDraft,
    "eagle3": Eagle3Draft,
    "hydra": HydraDraft,
    "lookup": LookupDraft,
    "medusa": MedusaDraft,
}


def load_draft(name_or_path: str | os.PathLike[str], target: TargetModel) -> DraftModel:
    """Load a draft in the target's dtype, on its device, and bind it to the target.

    Args:
        name_or_path: a directory or a name on the hub; or the name of a system without weights, such as "lookup".
        target: the model it drafts for.

    Raises:
        UserError: no draft is there, its files are damaged or incomplete, or it was trained for another target.
    """
    name = os.fspath(name_or_path)
    if name in SYSTEMS and not SYSTEMS[name].trainable and not Path(name).exists():
        return SYSTEMS[name].from_target(target).eval()
    system = SYSTEMS[_model_type(name)]
    if not system.trainable:
        config = cast(Any, system.config_class).from_pretrained(name)
        return system(config).eval().bind(target)
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


def trainable_system(name: str) -> type[DraftModel]:
    """The class of a draft system by its name.

    Raises:
        UserError: there is no such system, or it has nothing to train.
    """
    known = ", ".join(sorted(name for name, system in SYSTEMS.items() if system.trainable))
    if name not in SYSTEMS:
        raise UserError(f"there is no draft system {name!r}; known are {known}")
    if not SYSTEMS[name].trainable:
        raise UserError(f"{name} has no weights to train; use it as it is, or train one of {known}")
    return SYSTEMS[name]


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
