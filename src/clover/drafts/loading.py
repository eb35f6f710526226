"""Load a draft from a directory or the hub, with clear errors for files that cannot be used."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any, cast

import torch
from transformers import PretrainedConfig

from clover.drafts.base import SYSTEMS, DraftModel
from clover.drafts.config import Fit, check_draft_options, check_target, fit_of
from clover.errors import UserError, one_line
from clover.target import TargetWeights, tensors_fingerprint
from clover.target.loading import FAILURES
from clover.validation import read_json

_LOOKUP, _INSTEAD = "lookup", "use --tree lookup (in Python tree='lookup'), which needs no draft"


def load_draft(name_or_path: str | os.PathLike[str], target: TargetWeights) -> DraftModel:
    """Load a draft in the target's dtype, on its device, and bind it to the target.

    `name_or_path` is a directory or a name on the hub. A draft whose weights are not all finite is loaded with a
    warning, and is not `usable`. UserError if no draft is there, its files are damaged or incomplete, or it was trained
    for another target.
    """
    draft = _bound(os.fspath(name_or_path), target)
    if not draft.usable:
        warnings.warn(
            f"the draft {name_or_path} has weights that are not finite: decoding is plain; train it again",
            stacklevel=2,
        )
    return draft


def load_usable(name_or_path: str | os.PathLike[str], target: TargetWeights) -> DraftModel:
    """Load a draft like `load_draft`, but raise UserError, without a warning, for weights that are not all finite."""
    draft = _bound(os.fspath(name_or_path), target)
    check_usable(draft, os.fspath(name_or_path))
    return draft


def check_usable(draft: DraftModel, name: str) -> None:
    """Raise UserError if weights are not all finite."""
    if not draft.usable:
        raise UserError(f"{name} has weights that are not finite; train it again")


def load_unbound(name_or_path: str | os.PathLike[str]) -> DraftModel:
    """Load a draft without its target, in its stored dtype; UserError as in `load_draft`."""
    name = os.fspath(name_or_path)
    described, system = _checked(name)
    return _loaded(name, system, getattr(torch, described.get("dtype") or "float32"))


def read_config(name_or_path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return the checked config.json of a draft; UserError as in `system_of`."""
    return _checked(os.fspath(name_or_path))[0]


def system_of(name_or_path: str | os.PathLike[str]) -> str:
    """Return the name of a draft's system; UserError if no draft is there, or its config.json is damaged."""
    return str(read_config(name_or_path)["model_type"])


def find_system(name: str) -> type[DraftModel]:
    """Return the class of a draft system by its name; UserError if there is no such system."""
    if name == _LOOKUP:
        raise UserError(f"the draft system lookup was removed; {_INSTEAD}")
    if name not in SYSTEMS:
        raise UserError(f"there is no draft system {name!r}; known are {', '.join(sorted(SYSTEMS))}")
    return SYSTEMS[name]


def _checked(name: str) -> tuple[Mapping[str, Any], type[DraftModel]]:
    """Return a draft's config.json and the class of its system, checked before anything is built from it."""
    folder, path = Path(name), Path(name) / "config.json"
    if folder.is_dir() and not path.is_file():
        raise UserError(f"no draft at {name}: it holds no config.json")
    if name == _LOOKUP and not folder.is_dir():
        raise UserError(f"the draft lookup was removed; {_INSTEAD}")
    if not folder.is_dir() and (name.startswith(("/", ".", "~")) or "/" not in name):
        raise UserError(f"no draft at {name}: no such directory; a name on the hub is OWNER/NAME")
    try:
        described = read_json(path) if path.is_file() else PretrainedConfig.get_config_dict(name)[0]
    except (OSError, ValueError) as error:
        raise UserError(f"no draft at {name}: {one_line(error)}") from error
    kind = described.get("model_type")
    if kind == _LOOKUP:
        raise UserError(f"{name} is a draft of the system lookup, which was removed; {_INSTEAD}")
    if not isinstance(kind, str) or kind not in SYSTEMS:
        known = ", ".join(sorted(SYSTEMS))
        raise UserError(f"{name} is not a draft: its model_type is {str(kind)[:60]!r}, known are {known}")
    check_draft_options(SYSTEMS[kind].config_class, described, f"{name}: config.json")
    return described, SYSTEMS[kind]


def _bound(name: str, target: TargetWeights) -> DraftModel:
    described, system = _checked(name)
    check_target(described.get("target_config") or {}, target)
    known = described.get("target_weights")
    if known is not None and tensors_fingerprint(target) not in (None, known):
        warnings.warn(
            f"the draft {name} was trained {_on_what(described, target)}; the text stays the target's, but fewer "
            f"tokens may be accepted: clover evaluate --draft {quote(name)} --target DIR counts them",
            stacklevel=3,
        )
    trained = bool(described.get("target_int8"))
    if known is not None and trained != (target.weights is not None):
        kinds = {True: "int8 weights", False: "plain weights"}
        warnings.warn(
            f"the draft {name} was trained for the target with {kinds[trained]}, which runs with {kinds[not trained]}; "
            "a few tokens less may be accepted",
            stacklevel=3,
        )
    draft = _loaded(name, system, target.dtype)
    return cast(Any, draft).to(target.device).eval().bind(target)


def _on_what(described: Mapping[str, Any], target: TargetWeights) -> str:
    """Describe the target that a draft was trained on, if it is not this one."""
    model = described.get("target_name")
    if model is None:
        return "for a target with other weights"
    if fit_of(described, target) >= Fit.MODEL:
        return f"on other weights of {model} than these, which are another quantization or a fine-tune"
    return f"on {model}, not on this target, which has the same sizes, as a fine-tune has"


def _loaded(name: str, system: type[DraftModel], dtype: torch.dtype) -> DraftModel:
    try:
        draft = _built(name, system, dtype)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"cannot load the draft {name}: {one_line(error)}") from error
    draft.usable = all(bool(torch.isfinite(weight).all()) for weight in draft.parameters())
    return draft


def _built(name: str, system: type[DraftModel], dtype: torch.dtype) -> DraftModel:
    """Return the draft with the weights from its files, all in one dtype."""
    config = cast(Any, system.config_class).from_pretrained(name)
    _ = config.tree_shape
    _check_sizes(name, system, config)
    loaded: Any = system.from_pretrained(
        name, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True
    )
    draft, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            first = sorted(map(str, report[kind]))[0]
            raise UserError(f"the draft {name} has {kind.replace('_', ' ')}: {first} …")
    return draft


def _check_sizes(name: str, system: type[DraftModel], config: Any) -> None:
    """Raise UserError for a directory whose config.json describes more weights than its files have bytes."""
    held = sum(file.stat().st_size for file in Path(name).glob("*.safetensors"))
    with torch.device("meta"):
        described = sum(weight.numel() for weight in cast(Any, system)(config).parameters())
    if Path(name).is_dir() and described > held:
        raise UserError(
            f"the draft {name} is damaged: config.json describes {described:,} weights, in files of {held:,} bytes"
        )
