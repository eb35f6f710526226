"""Messages as chat templates read them: calls of earlier turns, their results, and reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clover.errors import UserError

_REASONING = ("reasoning_content", "reasoning", "thinking")  # what templates call it
_PROBE = {
    "type": "function",
    "function": {
        "name": "qprobeq",
        "description": "It looks something up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "A name."}}},
    },
}


def renders_tools(tokenizer: Any) -> bool:
    """Return whether a tokenizer's chat template shows the model the tools of a request."""
    try:
        return "qprobeq" in tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}], tools=[_PROBE], add_generation_prompt=True, tokenize=False
        )
    except Exception:  # noqa: BLE001  # the template is a program of its own, which may raise anything
        return False


def prepare_messages(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> list[dict[str, Any]]:
    """Return messages of OpenAI's interface as the chat template reads them.

    Arguments of calls become objects, which templates write as JSON. Reasoning gets the names that the template uses.

    Raises:
        UserError: the arguments of a call are no JSON object.
    """
    template, prepared = str(tokenizer.chat_template), list[dict[str, Any]]()
    for message in messages:
        one = {name: value for name, value in message.items() if value is not None}
        if calls := one.get("tool_calls"):
            one["tool_calls"] = [_with_object(call) for call in calls]
        reasoning = one.pop("reasoning_content", None)
        if reasoning:
            one |= {name: reasoning for name in _REASONING if name in template}
        prepared.append({"content": ""} | one)
    return prepared


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        raise UserError(f"the arguments of {function['name']} are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise UserError(f"the arguments of {function['name']} are no JSON object")
    return dict(call) | {"function": function | {"arguments": arguments}}
