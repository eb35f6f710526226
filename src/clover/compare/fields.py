"""Make frozen dataclasses of TOML and JSON tables, with errors that name the key."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from clover.errors import UserError

T = TypeVar("T")
_WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def read_table(kind: type[T], table: Any, where: str) -> T:
    """Make a `kind` of `table`; the annotations of its fields say what each key takes.

    Args:
        kind: a dataclass whose fields are str, int, float, bool, None, tuples, dicts or such dataclasses.
        where: names the table in errors.

    Raises:
        UserError: a key is unknown or missing, or a value is of another type or one that `kind` itself refuses.
    """
    if not isinstance(table, dict):
        raise UserError(f"{where} must be a table, not {table!r}")
    hints = get_type_hints(kind)
    if unknown := sorted(set(table) - set(hints)):
        raise UserError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(hints)}")
    for field in fields(kind):  # pyright: ignore[reportArgumentType]  # every kind is a dataclass
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in table:
            raise UserError(f"{where} lacks the key {field.name!r}")
    values = {key: _value(hints[key], value, f"{where}: {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def check(name: str, value: object, valid: bool, allowed: str) -> None:
    """Raise UserError that says what `value` must be, unless it is valid."""
    if not valid:
        raise UserError(f"{name} is {value!r}; it must be {allowed}")


def _value(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if get_origin(hint) in (Union, types.UnionType):
        return None if value is None else _value(get_args(hint)[0], value, where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list, not {value!r}")
        return tuple(_value(get_args(hint)[0], one, where) for one in value)
    if get_origin(hint) is dict:
        if not isinstance(value, dict):
            raise UserError(f"{where} must be a table, not {value!r}")
        return {key: _value(get_args(hint)[1], one, f"{where}.{key}") for key, one in value.items()}
    if is_dataclass(hint):
        return read_table(hint, value, where)  # pyright: ignore[reportArgumentType]
    return _plain(hint, value, where)


def _plain(hint: type, value: Any, where: str) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise UserError(f"{where} must be {_WORDS[hint]}, not {value!r}")
    return value
