"""Read the types of a call's arguments from the JSON schemas of tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
_DEEPEST = 16  # most nested references and alternatives


def typed(tools: Sequence[Any]) -> list[Any]:
    """Return tools whose arguments state their types directly, not by reference as pydantic writes them."""
    return [_typed(tool) if isinstance(tool, Mapping) else tool for tool in tools]


def _typed(tool: Schema) -> dict[str, Any]:
    parameters = mapping(tool["function"].get("parameters"))
    properties = mapping(parameters.get("properties"))
    kinds = {name: {"type": list(types(schema, parameters))} for name, schema in properties.items()}
    return {**tool, "function": {**tool["function"], "parameters": {**parameters, "properties": kinds}}}


def types(schema: Any, parameters: Schema, depth: int = 0) -> Iterator[str]:
    """Yield the types that a schema allows, including those of references."""
    schema = followed(schema, parameters)
    if depth > _DEEPEST:
        return
    said = schema.get("type")
    yield from (said,) if isinstance(said, str) else listed(said)
    if schema.get("nullable"):
        yield "null"
    if not said:
        yield from (_NAMES.get(type(value), "null") for value in choices(schema))
    for union in ("anyOf", "oneOf", "allOf"):
        for choice in listed(schema.get(union)):
            yield from types(choice, parameters, depth + 1)


def followed(schema: Any, parameters: Schema) -> Schema:
    """Return the schema of a reference; {}, which allows anything, for anything that is not a schema."""
    known = {**mapping(parameters.get("definitions")), **mapping(parameters.get("$defs"))}
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = known.get(str(schema["$ref"]).rpartition("/")[2])
    return mapping(schema)


def choices(schema: Schema) -> list[Any]:
    """Return the only allowed values; [] if the schema does not list them."""
    return [schema["const"]] if "const" in schema else listed(schema.get("enum"))


def mapping(value: Any) -> Schema:
    """Return an object from a client's schema; {} for anything else."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """Return a list from a client's schema; [] for anything else."""
    return list(value) if isinstance(value, list | tuple) else []
