"""Drafts in packages, this one's own and others that are installed, and which of them is for a target.

A package of drafts names its module in the entry point group `clover.drafts`. Each folder there with a config.json is a
draft. The module is not imported, and nothing in it is run: its files are read as those of any draft.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clover import assets
from clover.errors import UserError, one_line

if TYPE_CHECKING:
    from clover.target import TargetWeights

GROUP = "clover.drafts"
_OWN = "clover-decoding"
_BEST = "recall"  # Of several drafts in a package, that of this system is taken.


class NoDraftError(UserError):
    """No draft was named, and no package that is installed has one for the target."""


@dataclass(frozen=True)
class PackagedDraft:
    """A draft of an installed package: its name, the package with its version, its directory, and its config.json."""

    name: str
    package: str
    place: Path
    config: Mapping[str, Any]

    def __str__(self) -> str:
        """Return which draft it is, for a line of text."""
        return f"{self.name} of {self.package}, trained on {self.config.get('target_name') or 'a model without name'}"


def packaged_drafts() -> list[PackagedDraft]:
    """Return the drafts of this package and of all others that are installed; a warning for those that are damaged."""
    from clover.drafts.loading import read_config

    found = []
    for name, package, folder in _folders():
        for file in sorted(folder.glob("*/config.json")):
            try:
                if not (file.parent / "model.safetensors").is_file():
                    raise UserError(f"{file.parent} holds no model.safetensors; install the package again")
                named = f"{name}/{_printable(file.parent.name)}"
                found.append(PackagedDraft(named, package, file.parent, read_config(file.parent)))
            except (UserError, OSError) as error:
                warnings.warn(f"a draft of {package} cannot be used: {one_line(error)}", stacklevel=2)
    return found


def _folders() -> Iterator[tuple[str, str, Path]]:
    """Yield of each package of drafts its short name, its name and version, and its folder."""
    yield assets.SMOLLM2.name, _OWN, assets.SMOLLM2
    for entry in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        for place in _module_folders(entry.value):
            yield _printable(entry.name), _printable(package), Path(place)


def _module_folders(name: str) -> Sequence[str]:
    """Return the folders of a module, which is not imported; none for a name with dots, whose parents would be."""
    try:
        spec = find_spec(name) if name.isidentifier() else None
    except ValueError:  # a module of this process that came from no file
        spec = None
    return [*(spec.submodule_search_locations or ())] if spec else []


def _printable(name: str) -> str:
    return re.sub(r"[^\w.+ -]", "?", name)


def draft_place(
    draft: str | os.PathLike[str] | None, target: TargetWeights | None = None, named: str = ""
) -> str:
    """Return the place of the draft that a user named: a draft of a package by its name, or the name itself.

    A directory of that name comes before a draft of a package. Where none was named, one is found for the target, and
    a line of the log says which. NoDraftError if there is none; UserError if two packages have drafts of that name.

    Args:
        draft: None for Recall, of the embedded target or of the one that was given.
        target: that the user has given, None for the embedded one.
        named: what the user calls the target.
    """
    if draft is None:
        return str(assets.DRAFT if target is None else drafts_of(target, named)[-1].place)
    name = os.fspath(draft)
    if Path(name).is_dir():
        return name
    if name in assets.DRAFTS:
        return str(assets.DRAFTS[name])
    places = [one for one in packaged_drafts() if one.name == name] if name.count("/") == 1 else []
    if len(places) > 1:
        owners = ", ".join(one.package for one in places)
        raise UserError(f"several packages have a draft {name} ({owners}); name the directory of one")
    return str(places[0].place) if places else name


def draft_name(draft: str | None, place: str) -> str:
    """Return the name of a draft in reports: as the user named it, or its name in a package."""
    if draft is not None:
        return draft
    return next((one.name for one in packaged_drafts() if str(one.place) == place), "embedded")


def drafts_of(target: TargetWeights, named: str = "") -> list[PackagedDraft]:
    """Return the drafts for a target of the package that has the nearest, the best one last; the log has a line of it.

    NoDraftError if no package has one for a target of these sizes and tokens.
    """
    from clover.drafts.config import Fit, fit_of

    fits = [(fit_of(one.config, target, named), one) for one in packaged_drafts()]
    nearest = max((fit for fit, _ in fits), default=Fit.NONE)
    if nearest is Fit.NONE:
        raise NoDraftError(_no_draft(named))
    near = [one for fit, one in fits if fit is nearest]
    chosen = [one for one in near if one.package == near[0].package]
    chosen.sort(key=lambda one: (one.config["model_type"] == _BEST, one.name))
    others = [one for one in near if one.package != near[0].package]
    more = f"; as near are {', '.join(map(str, others))}: --draft chooses" if others else ""
    logging.getLogger("clover").info("the draft is %s%s", chosen[-1], more)
    return chosen


def check_has_draft(target: str) -> None:
    """Raise NoDraftError for a target whose sizes show, before it is loaded, that no package has a draft for it."""
    from clover.target.source import find_source
    from clover.validation import read_json

    source, width = find_source(target), None
    if source.gguf is not None:
        width = source.gguf.facts().get("embedding_length")
    elif source.directory is not None and (file := source.directory / "config.json").is_file():
        width = read_json(file).get("hidden_size")
    if width is not None and width not in [_width(one) for one in packaged_drafts()]:
        raise NoDraftError(_no_draft(target))


def is_smollm2(target: TargetWeights) -> bool:
    """Return whether this is SmolLM2-135M-Instruct, in whatever file and dtype."""
    from clover.drafts.config import Fit, fit_of

    own = [one for one in packaged_drafts() if one.place.parent == assets.SMOLLM2]
    return any(fit_of(one.config, target) >= Fit.MODEL for one in own)


def _width(draft: PackagedDraft) -> Any:
    return (draft.config.get("target_config") or {}).get("hidden_size")


def _no_draft(target: str) -> str:
    packages = ", ".join(dict.fromkeys(package for _, package, _ in _folders()))
    return (
        f"a target was given but no draft, and no installed package has one for it (looked in {packages}); give its "
        f"draft, train one (clover train --target {target or 'DIR'} …), or give --tree lookup, which needs none"
    )
