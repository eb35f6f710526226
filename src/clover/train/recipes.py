"""Named recipes: what a training sets that is published with a system, and fields of a draft given as text."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import torch

from clover.drafts import DraftModel
from clover.drafts.loading import trainable_system
from clover.drafts.vocabulary import default_size
from clover.errors import UserError
from clover.target import TargetModel
from clover.train.config import TrainConfig

DEFAULT, PAPER = RECIPES = ("default", "paper")


def named_recipe(name: str, system: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a recipe sets: of the training (`TrainConfig`), and of the draft's configuration.

    Raises:
        UserError: there is no such recipe, or that of the system's paper is not known.
    """
    if name not in RECIPES:
        raise UserError(f"--recipe is {name!r}; it must be default or paper")
    paper = trainable_system(system).paper_recipe
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


def prepare(config: TrainConfig, target: TargetModel) -> tuple[TrainConfig, DraftModel]:
    """The training with the part of the vocabulary that a large one is learnt by, and a draft with starting values.

    The seed decides the starting values. UserError if the draft's options or the target do not fit the system.
    """
    config = _with_vocabulary(config, target.vocab_size)
    torch.manual_seed(config.seed)
    return config, trainable_system(config.system).from_target(target, **config.draft)


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
