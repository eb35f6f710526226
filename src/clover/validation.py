"""Read JSON and check it with pydantic; every error is one line that names the file and the field."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import dataclass_transform

from clover.errors import UserError, one_line
from clover.files import MAX_BYTES, read_text, write_text

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

T = TypeVar("T")
_BRANCH = re.compile(r"str|constrained-str|.*\[.*")  # how pydantic names the alternatives of a union


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON file with one object; UserError as in `read_text` and `parse_json`, or if it is not an object."""
    obj = parse_json(read_text(path), os.fspath(path))
    if not isinstance(obj, dict):
        raise UserError(f"{os.fspath(path)} must hold a JSON object, not a {type(obj).__name__}")
    return obj


def read_model(path: str | os.PathLike[str], kind: type[T], max_bytes: int = MAX_BYTES) -> T:
    """Read a JSON file as a `kind`, with the errors of `read_text`, `parse_json` and `validated`."""
    return validated(kind, parse_json(read_text(path, max_bytes), os.fspath(path)), os.fspath(path))


def read_lines(path: Path, kind: type[T], max_bytes: int = MAX_BYTES, mend: bool = False) -> list[T]:
    """Read the lines of `append_lines`, except a half-written last line; `mend` removes it from the file.

    UserError names the first line that is not a `kind`.
    """
    text = read_text(path, max_bytes)
    whole = text[: text.rfind("\n") + 1]
    objects = [
        validated_json(kind, line, f"{path}, line {number}, which clover did not write so")
        for number, line in enumerate(whole.split("\n")[:-1], start=1)
    ]
    if mend and whole != text:
        write_text(path, whole)
    return objects


def parse_json(text: str, source: str) -> Any:
    """Parse JSON without lone surrogates, nested less than 200 deep; otherwise UserError, which names `source`."""
    from pydantic_core import from_json

    try:
        return from_json(text)
    except ValueError as error:
        raise UserError(f"{source} is not valid JSON: {one_line(error)}") from error


def validated(kind: type[T], obj: Any, source: str) -> T:
    """Make a `kind` (a dataclass, pydantic model or `TypeAdapter` type) of parsed JSON, without converting any value.

    UserError if a field is missing, has the wrong type, or is refused: one line with `source` (usually the file), the
    field, its value, and the expected value.
    """
    try:
        text = json.dumps(obj, allow_nan=False)
    except RecursionError as error:
        raise UserError(f"{source} is nested too deeply") from error
    except (TypeError, ValueError) as error:  # a date of TOML, an infinity
        raise UserError(f"{source} cannot be used: {one_line(error)}") from error
    return validated_json(kind, text, source)


def validated_json(kind: type[T], text: str, source: str) -> T:
    """Make a `kind` of JSON text as `validated` does; faster for files with many objects."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(f"{source}: {describe_problem(error.errors(include_url=False)).message}") from error


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def checked(kind: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields pydantic checks, as strictly as `validated`; UserError names the field."""
    from pydantic import ValidationError
    from pydantic.dataclasses import dataclass

    made = dataclass(frozen=True, config={"strict": True, "extra": "forbid"})(kind)
    names, make = [one.name for one in fields(made)], made.__init__  # type: ignore[arg-type]

    @wraps(make)
    def init(self: Any, *values: Any, **named: Any) -> None:
        try:
            make(self, **dict(zip(names, values, strict=False)), **named)
        except ValidationError as error:
            raise UserError(describe_problem(error.errors(include_url=False)).message) from error

    made.__init__ = init  # type: ignore[assignment]
    return made  # type: ignore[return-value]


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@dataclass(frozen=True)
class Problem:
    """One fault of the data: pydantic's name for it, the top-level field, and one line for the user."""

    kind: str
    field: str | None
    message: str


def describe_problem(problems: "Sequence[ErrorDetails]") -> Problem:
    """Describe the most helpful of pydantic's problems as "field is …; it must be …".

    For a field with several allowed types pydantic lists a problem for each; the type that fits best is described.
    """
    problem = max(problems, key=_closeness)
    places = [str(part) for part in problem["loc"]]
    place = ".".join(part for part in places if not _BRANCH.fullmatch(part))
    message = one_line(ValueError(_sentence(place, problem)))
    return Problem(problem["type"], _printable(places[0][:300]) if places else None, _printable(message))


def _sentence(place: str, problem: "ErrorDetails") -> str:
    subject = place[:200] or "the whole"
    match problem["type"]:
        case "missing":
            return f"{subject} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{subject} is unknown; leave it out"
        case "too_short" | "string_too_short" if not problem["input"]:
            return f"{subject} must not be empty"
        case "value_error" | "assertion_error":
            reason = one_line(problem.get("ctx", {})["error"])
            return f"{subject}: {reason}" if place else reason
        case "json_invalid":
            return problem["msg"]
    value = repr(problem["input"])
    value = value if len(value) <= 60 else value[:57] + "..."
    return f"{subject} is {value}; {problem['msg'].replace('Input should be', 'it must be')}"


def _closeness(problem: "ErrorDetails") -> tuple[bool, int, bool]:
    """Rank the problem of the most likely type highest: a refusal, then the deepest, then a value of the right type."""
    wrong_type = problem["type"] in ("string_type", "list_type")
    return problem["type"] == "value_error", len(problem["loc"]), not wrong_type


def _printable(text: str) -> str:
    """Replace half characters, which JSON can name but UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
