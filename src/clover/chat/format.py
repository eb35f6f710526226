"""Find the format in which a model writes its answers, from its tokenizer."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clover.chat.formats import FORMATS, THINK, Format
from clover.chat.schemas import typed
from clover.errors import UserError, one_line
from clover.templates import REASONING, render

CALLS = "tool_calls"  # the prefix of the names of regions with calls
_OPENERS = ("<think>", "[THINK]", "<|channel>thought")  # openings of reasoning at the end of a prompt
_NAMED = "think|thought|reason"
_THOUGHT = r"(analysis|think|thinking|thoughts?|reasoning)\b"
_MARK = "qmarkq"
_PROBE = {
    "type": "function",
    "function": {
        "name": "qprobeq",
        "description": "It looks something up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "A name."}}},
    },
}


@dataclass(frozen=True)
class ChatFormat:
    """The format of one model's answers, which divides them into regions.

    Args:
        template: a response template of transformers.
        own: whether it is the tokenizer's own template, which finds the beginning of the answer in the prompt.
        hidden: special tokens without text: no region begins or ends with them, and their names do not mean thinking.
        name: the name of the format; "" for a tokenizer's own.
        forced: the parts of a forced call, see `clover.chat.formats.base.Format`; () if calls cannot be forced.
        special: the numbers of tokens that grammars name by number, by text: special tokens, and added ones like them.
        element: if arguments are elements, the strings before the name of one, before its value, and after its value.
    """

    template: Mapping[str, Any]
    own: bool
    hidden: frozenset[int]
    name: str = ""
    forced: tuple[str, ...] = ()
    special: Mapping[str, int] = field(default_factory=dict)
    element: tuple[str, str, str] = ("", "", "")

    @property
    def has_calls(self) -> bool:
        """Return True if the format has a region with calls."""
        return any(name.startswith(CALLS) for name in self.template["fields"])

    def parser(self, prompt: str, tools: Sequence[Mapping[str, Any]]) -> Any:
        """Return transformers' `ResponseParser` for the answer to a prompt."""
        from transformers.utils.chat_parsing import ResponseParser

        if not self.own:
            opener = next((one for one in _OPENERS if prompt.rstrip().endswith(one)), None)
            prompt = "" if opener is None else prompt[prompt.rindex(opener) :]
        return ResponseParser(dict(self.template), prompt, tools=typed(tools) or None)  # type: ignore[arg-type]


def find_tool_format(tokenizer: Any, ends: Sequence[int]) -> ChatFormat:
    """Return the format of a model's answers if tools are offered; UserError if the model was not made for tools."""
    format = find_format(tokenizer, ends, calls=True)
    if not _renders_tools(tokenizer):
        raise UserError("this model was not made for tools: its chat template does not show them")
    if format is None or not format.has_calls:
        raise UserError("this model writes tool calls in an unknown format; leave tools out")
    return format


def find_format(tokenizer: Any, ends: Sequence[int], calls: bool = False) -> ChatFormat | None:
    """Return the format of a model's answers; None if they are only words.

    Args:
        tokenizer: the model's tokenizer, with a chat template.
        ends: tokens that end an answer; they never have a text.
        calls: whether to parse calls; otherwise they stay words.

    Raises:
        UserError: the model marks its reasoning by special tokens in an unknown way, so that reasoning and answer could
            not be separated; or transformers is too old.
    """
    own = getattr(tokenizer, "response_template", None)
    known = None if own else _known(str(tokenizer.chat_template))
    template = dict(own) if own else _template(known, str(tokenizer.chat_template))
    fields = {
        name: one for name, one in template.get("fields", {}).items() if calls or not name.startswith(CALLS)
    }
    if not own and not any(name in fields for name in REASONING) and (mark := _reasoning_mark(tokenizer)):
        raise UserError(
            f"chats with this model are not supported: it marks its reasoning by {mark}, in an unknown format; decode "
            "plain text, or give the tokenizer a response_template (transformers)"
        )
    if own:
        _check_fields(fields)
    special = {token: str(one) for token, one in tokenizer.added_tokens_decoder.items() if one.special}
    # A model may think between special tokens that its chat template does not contain.
    thoughts = {one for one in special.values() if not own and re.search(_NAMED, one, re.IGNORECASE)}
    if thoughts >= {"<think>", "</think>"} and "reasoning_content" not in fields:
        fields |= THINK
    if not (set(fields) - {"content"} or thoughts):
        return None
    template = template | {"fields": fields}
    text = json.dumps([template, *thoughts], ensure_ascii=False).replace("\\", "")
    hidden = frozenset(token for token, name in special.items() if name not in text or token in ends)
    known = known or Format("", (), {})
    forced = known.shown_in(known.forced, str(tokenizer.chat_template), ())
    element = known.shown_in(known.element, str(tokenizer.chat_template), ("", "", ""))
    # llguidance treats added tokens in angle brackets as special, too.
    added = {str(one): token for token, one in tokenizer.added_tokens_decoder.items()}
    named = {name: token for name, token in added.items() if token in special or re.fullmatch("<.*>", name)}
    format = ChatFormat(template, bool(own), hidden, known.name, forced, named, element)
    try:
        format.parser("", ())
    except ImportError as error:
        raise UserError("to parse the answers of this model, update transformers to 5.10 or later") from error
    except ValueError as error:
        raise UserError(f"transformers cannot parse the answers of this model: {one_line(error)}") from error
    return format


def warn_of_marks(tokenizer: Any, hidden: frozenset[int] | None, tokens: Sequence[int]) -> None:
    """Warn if the words of an answer contain a special token without text (`hidden`; None for all special tokens).

    It may separate reasoning from the answer, although neither its name nor the chat template says so.
    """
    special = {token: str(one) for token, one in tokenizer.added_tokens_decoder.items() if one.special}
    unseen = special.keys() if hidden is None else hidden
    words = next((at for at in range(len(tokens), 0, -1) if tokens[at - 1] not in special), 0)
    if (found := next((token for token in tokens[:words] if token in unseen), None)) is not None:
        warnings.warn(
            f"an answer holds the special token {special.get(found, found)} amid its words, which its text leaves out; "
            "if the token ends the model's reasoning, give the tokenizer a response_template (transformers); if it "
            "ends the model's turn, add it to eos_token_id in generation_config.json",
            stacklevel=2,
        )


def _check_fields(fields: Iterable[str]) -> None:
    """Raise UserError for a field of a tokenizer's response template whose text would be lost."""
    known = ("content", "role", *REASONING)
    other = next((name for name in fields if name not in known and not name.startswith(CALLS)), None)
    if other is not None:
        raise UserError(
            f"chats with this model are not supported: its tokenizer's response_template has a field {other!r}, whose "
            f"text would be lost; {', '.join((*known, CALLS))} are known"
        )


def _known(chat_template: str) -> Format | None:
    """Return the first format whose marks are all in a chat template."""
    return next((one for one in FORMATS if all(mark in chat_template for mark in one.marks)), None)


def _template(known: Format | None, chat_template: str) -> dict[str, Any]:
    """Return the response template of a format, with <think> tags if the chat template contains them."""
    fields = dict(known.fields) if known else {"content": {}}
    if "reasoning_content" not in fields and "</think>" in chat_template:
        fields |= THINK
    return {"start_anchor_pattern": r"\A", "fields": fields}


def _reasoning_mark(tokenizer: Any) -> str | None:
    """Return the special token that marks reasoning, by its name or in the chat template; None if there is none."""
    template = str(tokenizer.chat_template)
    special = [str(one) for one in tokenizer.added_tokens_decoder.values() if one.special]
    for one in special:
        named = re.search(_NAMED, one, re.IGNORECASE) and one in template
        if named or re.search(rf"{re.escape(one)}(\\n|\s)*{_THOUGHT}", template):
            return one
    question, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
    reasoned = answer | dict.fromkeys(REASONING, _MARK)
    plain, text = (_rendered(tokenizer, [question, one]) for one in (answer, reasoned))
    before, found, _ = text.partition(_MARK)
    added = before[len(_common(before, plain)) :]
    return next((one for one in special if found and one in added), None)


def _common(first: str, second: str) -> str:
    """Return the common beginning of two texts."""
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
    return first[:at]


def _renders_tools(tokenizer: Any) -> bool:
    """Return True if a tokenizer's chat template shows tools to the model."""
    return "qprobeq" in _rendered(tokenizer, [{"role": "user", "content": "?"}], [_PROBE])


def _rendered(tokenizer: Any, messages: list[dict[str, str]], tools: Sequence[Any] = ()) -> str:
    try:
        return render(tokenizer, messages, tools, answer=bool(tools))
    except UserError:
        return ""
