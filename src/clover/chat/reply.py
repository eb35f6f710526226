"""Divide an answer into words, reasoning and calls while it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clover.chat.format import CALLS, ChatFormat
from clover.templates import REASONING
from clover.templates.calls import function_of

# Errors for answers that do not fit the tokenizer's own response template, or whose JSON is too deep.
_MISFITS = (ValueError, KeyError, RecursionError)


@dataclass(frozen=True)
class ToolCall:
    """A call of a function; `arguments` is the text of a JSON object, unchanged if the model wrote JSON."""

    name: str
    arguments: str

    def to_dict(self, name: str) -> dict[str, Any]:
        """Return the call in the form of OpenAI's interface, with `name` as its id."""
        return {
            "id": name,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True)
class Delta:
    """The newly certain parts of an answer: words for the user, reasoning, and complete calls."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __add__(self, other: Delta) -> Delta:
        return Delta(self.content + other.content, self.reasoning + other.reasoning, self.calls + other.calls)

    def message(self, number: int) -> dict[str, Any]:
        """Return a whole answer as a message of OpenAI's interface; the ids of its calls begin with `number`."""
        calls = [one.to_dict(f"{number:05}{at:04}") for at, one in enumerate(self.calls)]
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        said = {"role": "assistant", "content": self.content} | reasoning
        return said | ({"tool_calls": calls} if calls else {})


class ReplyParser:
    """A parser that reads one answer piece by piece. Blanks between its parts are dropped.

    A broken call, which is cut off or not JSON, becomes content.

    Args:
        format: the format of the model.
        prompt: the text before the answer with special tokens, because it may have opened the reasoning.
        tools: the tools of the request; they give the types of arguments without quotes.
    """

    def __init__(self, format: ChatFormat, prompt: str, tools: Sequence[Mapping[str, Any]] = ()):
        self._parser: Any = format.parser(prompt, tools)
        self._said = {"content": False, "reasoning": False}
        # Blanks that are held back, because they may be the end of a part.
        self._blanks = {"content": "", "reasoning": ""}
        self._parts = 0  # begun so far, without content
        self._called = False
        self._raw = ""  # text of the open region of calls, and the blanks before it
        self._read(self._parser.initial_events)

    def feed(self, text: str) -> Delta:
        """Add text, with special tokens, and return the parts that are now certain."""
        return self._read_safely(lambda parser: parser.feed(text), text)

    def finish(self) -> Delta:
        """Return the rest after the end of the text."""
        last = self._read_safely(lambda parser: parser.finalize()[1])
        done = self._parser is None or self._called
        return last + Delta("" if done else self._blanks["content"])

    def _read_safely(self, step: Callable[[Any], Iterable[Mapping[str, Any]]], text: str = "") -> Delta:
        """Take a step of the parser with more text; after its first error all text is content."""
        if self._parser is None:
            return Delta(text)
        # An error loses all events of its step. They are about the text that the parser held back, and the new text.
        held = self._parser._buffer[self._parser._pos :]
        try:
            return self._read(step(self._parser))
        except _MISFITS:
            self._parser = None
            return Delta(self._blanks["content"] + self._raw + held + text)

    def _read(self, events: Iterable[Mapping[str, Any]]) -> Delta:
        content, reasoning, calls = "", "", list[ToolCall]()
        for event in events:
            kind, field = event["type"], event["field"]
            if field.startswith(CALLS):
                if kind == "region_open":
                    self._part()
                elif kind == "region_chunk":
                    self._raw += event["text"]
                else:
                    found = _calls_or_none(event["value"])
                    content += self._say("content", self._raw) if found is None else ""
                    calls += found or ()
                    self._called, self._raw = self._called or bool(found), ""
            elif field in REASONING:
                if kind == "region_open":
                    self._part()
                elif kind == "region_chunk":
                    reasoning += self._say("reasoning", event["text"])
                else:
                    self._blanks["reasoning"] = "\n"  # separates it from more reasoning
            elif field == "content" and kind == "region_chunk":
                content += self._say("content", event["text"])
        return Delta(content, reasoning, tuple(calls))

    def _part(self) -> None:
        """Begin a part other than content."""
        self._parts += 1
        self._raw, self._blanks["content"] = self._blanks["content"], ""

    def _say(self, kind: str, text: str) -> str:
        """Return the certain text of a part. Blanks at its end are held back, blanks at its beginning dropped."""
        text = self._blanks[kind] + text
        if not self._said[kind] and self._parts:
            text = text.lstrip()
        certain = text.rstrip()
        self._blanks[kind] = text[len(certain) :]
        self._said[kind] = self._said[kind] or bool(certain)
        return certain


def read_calls(value: Any) -> list[ToolCall]:
    """Return the calls of a region: an object, a list of objects, or their JSON, separated by blanks, "," or ";".

    An object is {"name", "arguments" or "parameters"}, or has one as "function". ValueError for anything else.
    """
    if isinstance(value, str):
        return [call for one in _objects(value) for call in read_calls(one)]
    if isinstance(value, list):
        return [call for one in value for call in read_calls(one)]
    call = function_of(value)
    arguments = call.get("arguments", call.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not isinstance(json.loads(text or "{}"), dict):
        raise ValueError("the arguments are not an object")
    return [ToolCall(call["name"], text or "{}")]


def _calls_or_none(value: Any) -> list[ToolCall] | None:
    try:
        return read_calls(value) or None
    except _MISFITS:
        return None


def _objects(text: str) -> list[Any]:
    decoder, found, at = json.JSONDecoder(), list[Any](), 0
    while at < len(text):
        if text[at] in " \t\r\n,;":
            at += 1
            continue
        one, at = decoder.raw_decode(text, at)
        if isinstance(one, str):
            raise ValueError("a string is not a call")
        found.append(one)
    return found
