"""Check that a rendering shows the whole conversation, because templates ignore silently what they do not read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from clover.templates.calls import Message, function_of
from clover.templates.template import KEY, MARK, Template, TemplateRefused

# Names of fields with pictures, sounds or films, in a record, a message or a part of one.
_MEDIA = re.compile(
    "(input_?)?(image|img|picture|photo|pixel|video|audio|media|attachment)s?"
    "(_?(url|path|byte|file|value|data|base64|b64)s?)?",
    re.IGNORECASE,
)


def media_name(name: str) -> bool:
    """Return True if a field of this name is a picture, a sound or a film.

    >>> [media_name(name) for name in ("images", "image_url", "inputAudio", "text", "imagine")]
    [True, True, True, False, False]
    """
    return _MEDIA.fullmatch(name) is not None


def media_in(fields: Mapping[str, Any]) -> str | None:
    """Return the name of the first field that holds a picture, a sound or a film; None if there is none."""
    return next((str(name) for name, value in fields.items() if value and media_name(str(name))), None)


def hidden_tools(given: Sequence[Message], tools: Sequence[Any], text: str) -> list[str]:
    """Return the names of tools, offered or called, that a rendering does not show."""
    calls = [call for one in given for call in one.get("tool_calls") or ()]
    return [name for one in (*calls, *tools) if (name := function_of(one)["name"]) not in text]


def lost_message(
    template: Template,
    given: Sequence[Message],
    tools: Sequence[Any],
    text: str,
    answer: bool,
    options: Mapping[str, Any] | None,
) -> int | None:
    """Return the index of the first message that a rendering lacks wholly or partly; None if there is none.

    For example, a template may leave out a second system message, or all but the first of several calls. If a template
    changes words (quotes them, or drops the thinking), it is tried with words that it has no reason to change: in all
    messages at once, or if it refuses some, in one message at a time. A message whose other words it refuses counts as
    shown. Words beside calls do not count, because Llama's templates show only the calls.
    """
    at, marks = 0, dict[int, tuple[str, ...]]()
    for place, one in enumerate(given):
        calls, words = one.get("tool_calls") or (), _text_of(one).strip()
        parts = len(calls) if len(calls) > 1 else 2 * bool(words and not calls)
        marks[place] = tuple(f"{MARK}{place:05}x{part:03}" for part in range(parts))
        if words and not calls and at >= 0:
            found = text.find(words, at)
            at = -1 if found < 0 else found + len(words)
    if at >= 0 and not any(len(one.get("tool_calls") or ()) > 1 for one in given):
        return None
    for places in (marks.keys(), *({place} for place in marks)):
        marked = [_saying(one, marks[at]) if at in places else one for at, one in enumerate(given)]
        with suppress(TemplateRefused):
            shown = template.fill(marked, tools, answer, options)
            lost = [place for place in places if any(one not in shown for one in marks[place])]
            if lost or len(places) == len(given):
                return min(lost, default=None)
    return None


def _text_of(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


def _saying(message: Message, marks: Sequence[str]) -> Message:
    """Return a message of the same form with other words, or with other arguments in its calls.

    The words have the same lengths, and a mark at either end, because a template may cut them or show only a line.
    """
    if message.get("tool_calls") and marks:
        calls = zip(message["tool_calls"], marks, strict=True)
        return {**message, "tool_calls": [_marked(call, mark) for call, mark in calls]}
    if not marks:
        return message
    words = re.sub(r"\S", "x", _text_of(message).strip())
    text = ("\n" if "\n" in words else " ").join((marks[0], words, marks[1]))
    return {
        **message,
        "content": text if isinstance(message["content"], str) else [{"type": "text", "text": text}],
    }


def _marked(call: Mapping[str, Any], mark: str) -> dict[str, Any]:
    if (function := function_of(call)) is not call:
        return {**call, "function": _marked(function, mark)}
    arguments = {KEY: mark}
    return {**call, "arguments": json.dumps(arguments) if isinstance(call["arguments"], str) else arguments}
