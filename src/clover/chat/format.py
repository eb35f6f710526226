"""Which format a model writes in, found out from its tokenizer."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clover.chat.formats import FORMATS, THINK, Format
from clover.chat.schemas import typed
from clover.errors import UserError, one_line
from clover.templates import REASONING, render

CALLS = "tool_calls"  # begins the names of regions of calls
_OPENERS = ("<think>", "[THINK]", "<|channel>thought")  # of reasoning, with which a prompt may end
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
    """How the answers of one model are parted.

    Args:
        template: a response template of transformers.
        own: whether the tokenizer brought it; it then finds the beginning of the answer in the prompt itself.
        hidden: special tokens that no region begins or ends with, and that are not named after thinking: they have no
            text.
        name: of the format; "" for a tokenizer's own.
        forced: the parts of a call that is forced, see `clover.chat.formats.base.Format`; () where none can be.
        element: what stands before the name of an argument, between it and its value, and after that, where arguments
            are elements.
        special: the tokens that grammars name by their numbers, by their text: special ones, and added ones like them.
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
        """Return whether it has a region of calls."""
        return any(name.startswith(CALLS) for name in self.template["fields"])

    def parser(self, prompt: str, tools: Sequence[Mapping[str, Any]]) -> Any:
        """Return transformers' `ResponseParser` for the answer to a prompt."""
        from transformers.utils.chat_parsing import ResponseParser

        if not self.own:
            opener = next((one for one in _OPENERS if prompt.rstrip().endswith(one)), None)
            prompt = "" if opener is None else prompt[prompt.rindex(opener) :]
        return ResponseParser(dict(self.template), prompt, tools=typed(tools) or None)  # type: ignore[arg-type]


def find_tool_format(tokenizer: Any, ends: Sequence[int]) -> ChatFormat:
    """Return how a model's answers are parted when tools are offered; UserError if it was not made for tools."""
    format = find_format(tokenizer, ends, calls=True)
    if not _renders_tools(tokenizer):
        raise UserError("this model was not made for tools: its chat template shows it none")
    if format is None or not format.has_calls:
        raise UserError("this model writes calls of tools in a format that is not known; leave tools out")
    return format


def find_format(tokenizer: Any, ends: Sequence[int], calls: bool = False) -> ChatFormat | None:
    """Return how a model's answers are parted; None where they are words alone.

    Args:
        tokenizer: of the model, with a chat template.
        ends: tokens that end an answer; they never have a text.
        calls: whether calls are looked for; else they are words.

    Raises:
        UserError: the model marks its reasoning by special tokens in a way that is not known, so that it would be
            glued to the answer; or transformers is too old to part answers.
    """
    own = getattr(tokenizer, "response_template", None)
    known = None if own else _known(str(tokenizer.chat_template))
    template = dict(own) if own else _template(known, str(tokenizer.chat_template))
    fields = {
        name: one for name, one in template.get("fields", {}).items() if calls or not name.startswith(CALLS)
    }
    if not own and not any(name in fields for name in REASONING) and (mark := _reasoning_mark(tokenizer)):
        raise UserError(
            f"chats with this model are not supported: it marks its reasoning by {mark}, in a format that is not "
            "known; decode plain text, or give the tokenizer a response_template (transformers)"
        )
    special = {token: str(one) for token, one in tokenizer.added_tokens_decoder.items() if one.special}
    # A model may think between special tokens of which its chat template says nothing.
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
    # Grammars of llguidance take added tokens in angle brackets for special ones, too.
    added = {str(one): token for token, one in tokenizer.added_tokens_decoder.items()}
    named = {name: token for name, token in added.items() if token in special or re.fullmatch("<.*>", name)}
    format = ChatFormat(template, bool(own), hidden, known.name, forced, named, element)
    try:
        format.parser("", ())
    except ImportError as error:
        raise UserError("transformers parts the answers of this model from 5.10 on; update it") from error
    except ValueError as error:
        raise UserError(f"transformers cannot part the answers of this model: {one_line(error)}") from error
    return format


def warn_of_marks(tokenizer: Any, hidden: frozenset[int] | None, tokens: Sequence[int]) -> None:
    """Warn, once of each, of a special token amid the words of an answer to a conversation.

    It has no text (`hidden`, None for all of them), though it may part reasoning from the answer where neither its name
    nor the chat template says so.
    """
    special = {token: str(one) for token, one in tokenizer.added_tokens_decoder.items() if one.special}
    unseen = special.keys() if hidden is None else hidden
    words = next((at for at in range(len(tokens), 0, -1) if tokens[at - 1] not in special), 0)
    if (found := next((token for token in tokens[:words] if token in unseen), None)) is not None:
        warnings.warn(
            f"an answer holds the special token {special.get(found, found)} amid its words, and its text leaves that "
            "out; if the model parts its reasoning from the answer so, give the tokenizer a response_template "
            "(transformers), or if it ends its turn so, add the token to eos_token_id in generation_config.json",
            stacklevel=2,
        )


def _known(chat_template: str) -> Format | None:
    """Return the first format whose marks a chat template has."""
    return next((one for one in FORMATS if all(mark in chat_template for mark in one.marks)), None)


def _template(known: Format | None, chat_template: str) -> dict[str, Any]:
    """Return the response template of a format, and of reasoning between tags that a chat template shows."""
    fields = dict(known.fields) if known else {"content": {}}
    if "reasoning_content" not in fields and "</think>" in chat_template:
        fields |= THINK
    return {"start_anchor_pattern": r"\A", "fields": fields}


def _reasoning_mark(tokenizer: Any) -> str | None:
    """Return the special token that marks reasoning, by its name or by the chat template; None if there is none."""
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
    """Return the beginning that two texts share."""
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
    return first[:at]


def _renders_tools(tokenizer: Any) -> bool:
    """Return whether a tokenizer's chat template shows the model the tools of a request."""
    return "qprobeq" in _rendered(tokenizer, [{"role": "user", "content": "?"}], [_PROBE])


def _rendered(tokenizer: Any, messages: list[dict[str, str]], tools: Sequence[Any] = ()) -> str:
    try:
        return render(tokenizer, messages, tools, answer=bool(tools))
    except UserError:
        return ""
