"""Named recipes: what a training sets that is published with a system, and fields of a draft given as text."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import torch

from clover.assets import draft_place
from clover.drafts import DraftModel, load_usable
from clover.drafts.config import check_names, check_options
from clover.drafts.loading import find_system
from clover.drafts.vocabulary import check_size, default_size
from clover.errors import UserError
from clover.target import TargetWeights
from clover.train.config import TrainConfig

DEFAULT, PAPER = RECIPES = ("default", "paper")
_MAY_DIFFER = ("draft_vocab_size", "copy_shares")  # from those of the draft that a training goes on from


def named_recipe(name: str, system: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a recipe sets: of the training (`TrainConfig`), and of the draft's configuration.

    Raises:
        UserError: there is no such recipe, or that of the system's paper is not known.
    """
    if name not in RECIPES:
        raise UserError(f"--recipe is {name!r}; it must be default or paper")
    paper = find_system(system).training_defaults.paper_recipe
    if name == DEFAULT:
        return {}, {}
    if paper is None:
        raise UserError(f"the recipe of {system}'s paper is not known; leave --recipe out")
    fields = asdict(paper)
    own = fields.pop("options")
    settings = {"optimizer": "adamw", "clip": None, "few_depths": 0.0, **fields}
    return settings, {"draft_vocab_size": None, **own}


def _with_vocabulary(config: TrainConfig, vocab_size: int) -> TrainConfig:
    """The same training for a target of so many tokens.

    Unless another size is named, the draft learns from a part of a large vocabulary, which is fitted at the end.
    """
    size = default_size(vocab_size)
    if size is None or "draft_vocab_size" in config.draft:
        return config
    return replace(config, draft=config.draft | {"draft_vocab_size": size}, fit_vocabulary=True)


def prepare(config: TrainConfig, target: TargetWeights) -> tuple[TrainConfig, DraftModel]:
    """The training with the part of the vocabulary that a large one is learnt by, and a draft with starting values.

    They are those of the trained draft `config.start_from`, or else the seed decides them. UserError if the draft's
    options or the target do not fit the system, or there is no such trained draft.
    """
    config = _with_vocabulary(config, target.vocab_size)
    torch.manual_seed(config.seed)
    if config.start_from is not None:
        return config, _trained(config, config.start_from, target)
    return config, find_system(config.system).from_target(target, **config.draft)


def _trained(config: TrainConfig, name: str, target: TargetWeights) -> DraftModel:
    """A trained draft to go on from, in float32 or the target's wider dtype.

    It keeps every row of its lm_head: `draft_vocab_size` is how many tokens `train` leaves it, which the texts decide.
    """
    draft: Any = load_usable(draft_place(name), target)
    if draft.config.model_type != config.system:
        raise UserError(f"{name} is a draft of {draft.config.model_type}, not of {config.system}")
    check_names(draft.config_class, config.draft)
    check_options(draft.config_class, config.draft, name)
    for option, value in config.draft.items():
        known = getattr(draft.config, option)
        if option in _MAY_DIFFER:
            setattr(draft.config, option, value)
        elif known != value:
            raise UserError(f"{name} has {option} = {known!r}, and keeps it; {value!r} takes a new draft")
    draft.to(torch.promote_types(target.dtype, torch.float32))
    if draft.config.draft_vocab_size is None and draft.d2t is not None:
        draft.config.draft_vocab_size = target.vocab_size
    if (size := draft.config.draft_vocab_size) is not None:
        check_size(size, target.vocab_size)
    return draft


def draft_fields(given: Iterable[str]) -> dict[str, Any]:
    """Fields of a draft's configuration from FIELD=VALUE; values are JSON where they can be, else strings.

    >>> draft_fields(["mlp_ratio=2.0", "start=fresh"])
    {'mlp_ratio': 2.0, 'start': 'fresh'}
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise UserError(f"{text!r} must be FIELD=VALUE, such as mlp_ratio=2.0")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found
