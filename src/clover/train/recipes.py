"""Combine a draft system, a recipe and the user's settings into the options of a training; make the draft to train."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from clover.drafts import DraftModel, load_usable
from clover.drafts.config import check_draft_options, check_names
from clover.drafts.loading import find_system, system_of
from clover.drafts.vocabulary import check_size, default_size
from clover.errors import UserError
from clover.packaged import draft_place
from clover.target import TargetWeights
from clover.train.config import TrainConfig

DEFAULT, PAPER = RECIPES = ("default", "paper")
DEFAULT_SYSTEM = "recall"
_MAY_DIFFER = ("draft_vocab_size", "copy_shares")  # These come from the options of the draft `start_from`.


def named_recipe(name: str, system: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a recipe: fields of `TrainConfig`, and fields of the draft's configuration.

    Raises:
        UserError: there is no such recipe, or the recipe of the system's paper is not known.
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


def configure(
    output: str,
    system: str | None = None,
    recipe: str = DEFAULT,
    loss: str | None = None,
    loss_terms: Mapping[str, Any] | None = None,
    draft: Mapping[str, Any] | None = None,
    **settings: Any,
) -> TrainConfig:
    """Return the options of a training. Arguments override the recipe, and the recipe overrides the defaults.

    Args:
        output: directory of the finished draft.
        system: the draft system; None for the system of the draft `start_from`, or recall.
        recipe: "default" or "paper".
        loss: "default", "distillation" or "paper"; None for the recipe's.
        loss_terms: fields of `LossConfig`.
        draft: fields of the system's configuration.
        settings: fields of `TrainConfig`.

    Raises:
        UserError: a value is unknown or invalid.
    """
    start_from = settings.get("start_from")
    if system is None:
        system = DEFAULT_SYSTEM if start_from is None else system_of(draft_place(start_from))
    preset, fields = named_recipe(recipe, system)
    losses, name = find_system(system).training_defaults.losses(), loss or recipe
    if name not in losses:
        raise UserError(f"--loss is {name!r}; for {system} it must be one of {', '.join(losses)}")
    return TrainConfig(
        output=output,
        system=system,
        draft=fields | dict(draft or {}),
        loss=replace(losses[name], **loss_terms or {}),
        **preset | settings,
    )


def _with_vocabulary(config: TrainConfig, vocab_size: int) -> TrainConfig:
    """Return the same training for a target with `vocab_size` tokens.

    If the vocabulary is large, the draft learns only a part of it, which is fitted at the end; another size can be set.
    """
    size = default_size(vocab_size)
    if size is None or "draft_vocab_size" in config.draft or config.only_fits:
        return config
    return replace(config, draft=config.draft | {"draft_vocab_size": size}, fit_vocabulary=True)


def prepare(config: TrainConfig, target: TargetWeights) -> tuple[TrainConfig, DraftModel]:
    """Return the training, with the size of the draft's vocabulary, and a draft with starting values.

    These are the values of the trained draft `config.start_from`, or else depend on the seed. UserError if the draft's
    options or the target do not fit the system, or there is no such trained draft.
    """
    if config.only_fits and config.start_from is None:
        raise UserError("with 0 steps nothing is learnt: give a trained draft to fit, by --start-from")
    config = _with_vocabulary(config, target.vocab_size)
    torch.manual_seed(config.seed)
    if config.start_from is not None:
        return config, _trained(config, config.start_from, target)
    return config, find_system(config.system).from_target(target, **config.draft)


def _trained(config: TrainConfig, name: str, target: TargetWeights) -> DraftModel:
    """Return a trained draft as the start of a training, in float32 or the target's wider dtype.

    It keeps every row of its lm_head here. `train` reduces them to `draft_vocab_size` tokens, which the texts decide.
    """
    draft: Any = load_usable(draft_place(name), target)
    if draft.config.model_type != config.system:
        raise UserError(f"{name} is a draft of {draft.config.model_type}, not of {config.system}")
    check_names(draft.config_class, config.draft)
    check_draft_options(draft.config_class, config.draft, name)
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
    """Parse FIELD=VALUE into fields of a draft's configuration; a value that is not JSON is a string.

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
