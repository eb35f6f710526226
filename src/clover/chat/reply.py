"""An answer, parted into words, reasoning and calls as it is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clover.chat.format import CALLS, ChatFormat
from clover.templates import REASONING


@dataclass(frozen=True)
class ToolCall:
    """A call of a function; `arguments` is the text of a JSON object, as the model wrote it where it wrote JSON."""

    name: str
    arguments: str

    def to_dict(self, name: str) -> dict[str, Any]:
        """Return the call in the form of OpenAI's interface; `name` is its id."""
        return {
            "id": name,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True)
class Delta:
    """What became certain of an answer: words for the user, reasoning, and whole calls."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __add__(self, other: Delta) -> Delta:
        return Delta(self.content + other.content, self.reasoning + other.reasoning, self.calls + other.calls)

    def message(self, number: int) -> dict[str, Any]:
        """Return a whole answer as a message of OpenAI's interface, whose calls have ids made of `number`."""
        calls = [one.to_dict(f"{number:05}{at:04}") for at, one in enumerate(self.calls)]
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        said = {"role": "assistant", "content": self.content} | reasoning
        return said | ({"tool_calls": calls} if calls else {})


class ReplyParser:
    """Reads one answer piece by piece; blanks between its parts belong to none of them.

    What stands where a call should be and is none, because it is cut off or no JSON, becomes content.

    Args:
        format: of the model.
        prompt: text before the answer, special tokens included: the template may have opened the reasoning.
        tools: offered to the model, as in requests; they say of which type an argument without quotes is.
    """

    def __init__(self, format: ChatFormat, prompt: str, tools: Sequence[Mapping[str, Any]] = ()):
        self._parser: Any = format.parser(prompt, tools)
        self._said = {"content": False, "reasoning": False}
        # These blanks may yet turn out to stand at the end of a part.
        self._blanks = {"content": "", "reasoning": ""}
        self._parts = 0  # begun so far, content aside
        self._called = False
        self._raw = ""  # text of the region of calls that is open, and the blanks before it
        self._read(self._parser.initial_events)

    def feed(self, text: str) -> Delta:
        """Add text, special tokens included; return what it made certain."""
        if self._parser is None:
            return Delta(text)
        try:
            return self._read(self._parser.feed(text))
        except (ValueError, KeyError):
            # The tokenizer brought a response template that the answer does not fit.
            return self._give_up(text)

    def finish(self) -> Delta:
        """Return what is left when the text has ended."""
        if self._parser is None:
            return Delta()
        try:
            last = self._read(self._parser.finalize()[1])
        except (ValueError, KeyError):
            last = self._give_up("")
        rest = "" if self._called else self._blanks["content"]
        return last + Delta(rest)

    def _give_up(self, text: str) -> Delta:
        self._parser = None
        return Delta(self._raw + text)

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
                    self._blanks["reasoning"] = "\n"  # before more of it
            elif field == "content" and kind == "region_chunk":
                content += self._say("content", event["text"])
        return Delta(content, reasoning, tuple(calls))

    def _part(self) -> None:
        """Begin a part that is no content."""
        self._parts += 1
        self._raw, self._blanks["content"] = self._blanks["content"], ""

    def _say(self, kind: str, text: str) -> str:
        """Return what of a part can be said: not yet the blanks at its end, never those at its beginning."""
        text = self._blanks[kind] + text
        if not self._said[kind] and self._parts:
            text = text.lstrip()
        certain = text.rstrip()
        self._blanks[kind] = text[len(certain) :]
        self._said[kind] = self._said[kind] or bool(certain)
        return certain


def read_calls(value: Any) -> list[ToolCall]:
    """Return the calls of a region: an object, a list of them, or text of such JSON, parted by blanks, "," or ";".

    An object is {"name", "arguments" or "parameters"}, or has one as "function". ValueError if anything else is there.
    """
    if isinstance(value, str):
        return [call for one in _objects(value) for call in read_calls(one)]
    if isinstance(value, list):
        return [call for one in value for call in read_calls(one)]
    call = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError("no call of a function")
    arguments = call.get("arguments", call.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not isinstance(json.loads(text or "{}"), dict):
        raise ValueError("the arguments are no object")
    return [ToolCall(call["name"], text or "{}")]


def _calls_or_none(value: Any) -> list[ToolCall] | None:
    try:
        return read_calls(value) or None
    except ValueError:
        return None


def _objects(text: str) -> list[Any]:
    decoder, found, at = json.JSONDecoder(), list[Any](), 0
    while at < len(text):
        if text[at] in " \t\r\n,;":
            at += 1
            continue
        one, at = decoder.raw_decode(text, at)
        if isinstance(one, str):
            raise ValueError("a string is no call")
        found.append(one)
    return found
