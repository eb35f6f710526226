"""Checks of what a user may choose in a draft's configuration."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from clover.errors import UserError

ONE_LAYER_STATES = ("post_norm", "pre_norm")  # kinds of hidden states that are H wide


def check_choice(system: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise UserError if a named option has a value that there is not."""
    if value not in choices:
        raise UserError(f"{system}: {name} is {value!r}; it must be one of {', '.join(choices)}")


def check_count(system: str, name: str, value: int) -> None:
    """Raise UserError if there is not at least one of something."""
    if value < 1:
        raise UserError(f"{system}: {name} is {value}; it must be at least 1")


def check_options(config_class: type[PretrainedConfig], options: Mapping[str, Any]) -> None:
    """Raise UserError for a field that a draft's configuration does not have, or a value of another type."""
    fields = {
        name: parameter.default
        for base in config_class.__mro__
        if issubclass(base, PretrainedConfig) and base is not PretrainedConfig
        for name, parameter in inspect.signature(base).parameters.items()
        if name != "target_config" and parameter.default is not inspect.Parameter.empty
    }
    for name, value in options.items():
        if name not in fields:
            raise UserError(
                f"{config_class.model_type} has no option {name!r}; it has {', '.join(sorted(fields))}"
            )
        wanted = type(fields[name])
        exact = type(value) is wanted or (wanted is float and type(value) is int)
        if fields[name] is not None and not exact:
            raise UserError(
                f"{config_class.model_type}: {name} is {value!r}; it must be of type {wanted.__name__}"
            )
