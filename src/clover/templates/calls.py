"""Convert tools, and calls of tools, to the forms that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from clover.errors import UserError

Message = Mapping[str, Any]


def wrapped(call: Any) -> dict[str, Any]:
    """Return a call or a tool with a wrapper around its function, as templates expect; the wrapper has the id."""
    if (function := function_of(call)) is not call:
        return dict(call)
    outside = {name: call[name] for name in ("id",) if name in call}
    inside = {name: value for name, value in function.items() if name not in ("id", "type")}
    return {**outside, "type": "function", "function": inside}


def function_of(call: Any) -> Mapping[str, Any]:
    """Return the function of a call or of a tool, with or without a wrapper."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError("a tool, or a call of one, must be an object with the name of a function")
    return function


def with_arguments(call: Mapping[str, Any], form: str) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, or as the JSON of one."""
    if (function := function_of(call)) is not call:
        return {**call, "function": with_arguments(function, form)}
    arguments = call.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            parsed = from_json(arguments, allow_inf_nan=False)
        except ValueError:  # this includes a lone surrogate, which no tokenizer reads
            parsed = None
        if not isinstance(parsed, dict):
            raise UserError(f"the arguments of the tool call {call.get('name')!r} are not a JSON object")
        arguments = parsed if form == "object" else arguments
    elif form == "string":
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "arguments": arguments}


def with_wrappers(message: Message) -> Message:
    """Return a message with wrappers around its calls."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [wrapped(call) for call in calls]} if calls else message
