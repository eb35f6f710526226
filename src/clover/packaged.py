"""Find drafts in packages, in this one and in other installed ones, and choose the draft for a target.

A package of drafts names its module in the entry point group `clover.drafts`. Each folder of the module with a
config.json is a draft. The module is not imported, and no code of it runs: its files are read like those of any draft.
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
_BEST = "recall"  # If a package has several drafts, that of this system is chosen.


class NoDraftError(UserError):
    """No draft was named, and no installed package has one for the target."""


@dataclass(frozen=True)
class PackagedDraft:
    """A draft of an installed package: its name, the package with its version, its directory, and its config.json."""

    name: str
    package: str
    place: Path
    config: Mapping[str, Any]

    def __str__(self) -> str:
        """Describe the draft in a line of text."""
        return f"{self.name} of {self.package}, trained on {self.config.get('target_name') or 'a model without name'}"


def packaged_drafts() -> list[PackagedDraft]:
    """Return the drafts of this package and of all other installed ones; warn of those that are damaged or missing."""
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
    """Yield for each package of drafts its short name, its name and version, and its folder."""
    yield assets.SMOLLM2.name, _OWN, assets.SMOLLM2
    for entry in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        package = _printable(f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value)
        if not (places := _module_folders(entry.value)):
            reason = f"{_printable(entry.value)} is no installed top-level module with a folder of its own"
            warnings.warn(f"the drafts of {package} cannot be found: {reason}", stacklevel=1)
        for place in places:
            yield _printable(entry.name), package, Path(place)


def _module_folders(name: str) -> Sequence[str]:
    """Return the folders of a module without importing it; none for a dotted name, whose parents would be imported."""
    try:
        spec = find_spec(name) if name.isidentifier() else None
    except ValueError:  # a module of this process without a file
        spec = None
    return [*(spec.submodule_search_locations or ())] if spec else []


def _printable(name: str) -> str:
    return re.sub(r"[^\w.+ -]", "?", name)


def draft_place(
    draft: str | os.PathLike[str] | None, target: TargetWeights | None = None, named: str = ""
) -> str:
    """Return the place of the draft that a user named: a draft of a package by its name, or the name itself.

    A directory of that name comes before a draft of a package. Without a name, the draft for the target is found and
    logged. NoDraftError if there is none; UserError if two packages have drafts of that name.

    Args:
        draft: the name; None for the draft of the target.
        target: the user's target; None for the embedded one.
        named: the user's name for the target.
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
    """Return the name of a draft in reports: the user's name for it, or its name in a package."""
    if draft is not None:
        return draft
    return next((one.name for one in packaged_drafts() if str(one.place) == place), "embedded")


def drafts_of(target: TargetWeights, named: str = "") -> list[PackagedDraft]:
    """Return the drafts for a target from the package with the nearest draft, the best one last; log the choice.

    NoDraftError if no package has a draft for a target of these sizes and tokens.
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
    """Raise NoDraftError before a target is loaded if its sizes show that no package has a draft for it."""
    from clover.target.source import find_source
    from clover.validation import read_json

    source, width = find_source(target), None
    if source.gguf is not None:
        width = source.gguf.facts().get("embedding_length")
    elif source.directory is not None and (file := source.directory / "config.json").is_file():
        width = read_json(file).get("hidden_size")
    targets = (one.config.get("target_config") or {} for one in packaged_drafts())
    if width is not None and width not in [one.get("hidden_size") for one in targets]:
        raise NoDraftError(_no_draft(target))


def is_smollm2(target: TargetWeights) -> bool:
    """Return True if the target is SmolLM2-135M-Instruct, in any file format and dtype."""
    from clover.drafts.config import Fit, fit_of

    own = [one for one in packaged_drafts() if one.place.parent == assets.SMOLLM2]
    return any(fit_of(one.config, target) >= Fit.MODEL for one in own)


def _no_draft(target: str) -> str:
    packages = ", ".join(dict.fromkeys(package for _, package, _ in _folders()))
    return (
        f"a target was given but no draft, and no installed package has one for it (looked in {packages}; others: "
        f"docs/drafts.md); give its draft, train one (clover train --target {target or 'DIR'} …), or give --tree lookup"
    )
