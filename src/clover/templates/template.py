"""A chat template, and the forms of messages that it reads, found out with words that occur nowhere else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from clover.errors import UserError, one_line
from clover.templates.calls import Message, with_arguments

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "Assistant: {{ message['content'] }}{{ eos_token or '' }}{{ '\n\n' }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% else %}User: {{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
MARK, KEY = "Quorvex", "zimbolt"  # words that no template writes by itself
_VALUE = "Wraxley"
REASONING = ("reasoning_content", "reasoning", "thinking")  # a message's fields from which templates read it
_CALL_ID = "abcdefghi"  # because Mistral's templates accept only nine letters and digits


class TemplateRefused(UserError):
    """An error for a conversation that the chat template does not render, for example if roles do not alternate."""


@dataclass(frozen=True)
class Template:
    """A template: its program `text`, and the tokenizer that executes it."""

    tokenizer: Any
    text: str

    @property
    def name(self) -> str:
        start = " ".join(self.text[:80].split())
        kind = "" if self.tokenizer.chat_template else "; the model has none, so this plain one is used"
        owner = self.tokenizer.name_or_path or type(self.tokenizer).__name__
        return f'of {owner} ("{start}…"{kind})'

    def fill(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] = (),
        answer: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        given = {"tokenize": False, "add_generation_prompt": answer, "tools": list(tools) or None}
        given |= options or {}
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), chat_template=self.text, **given))
        except Exception as error:  # the template is a program, which may raise anything
            raise TemplateRefused(f"the chat template {self.name} refuses it: {one_line(error)}") from error

    def readable(self, message: Message) -> dict[str, Any]:
        """Return a message in the form that the template renders."""
        given = {key: value for key, value in message.items() if value is not None}
        if not isinstance(given.get("role"), str):
            raise UserError("a message needs a role, such as user")
        content, calls = given.get("content"), given.get("tool_calls")
        if reasoning := [given[name] for name in REASONING if given.get(name)]:
            if any(one != reasoning[0] for one in reasoning):
                raise UserError(f"a message has two of {', '.join(REASONING)} that differ; leave one out")
            given |= {name: reasoning[0] for name in REASONING if name in self.text}
        if calls:
            form = _calls(self)
            if form is None:
                raise TemplateRefused(f"the chat template {self.name} does not show tool calls")
            given["tool_calls"] = [with_arguments(call, form.arguments) for call in calls]
            if not content:
                return given | {"content": form.no_content}
        if content is None and any(given.get(name) for name in REASONING):
            content = ""
        return given | {"content": self._content(given["role"], content)}

    def _content(self, role: str, content: Any) -> Any:
        strings, parts = _reads(self, role)
        if isinstance(content, str) and strings:
            return content
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list | tuple) or not all(
            isinstance(part, Mapping)
            and isinstance(part.get("text"), str)
            and part.get("type", "text") == "text"
            for part in content
        ):
            raise UserError("the content of a message must be a string, or a list of parts of type text")
        if len(content) <= parts:
            return list(content)
        joined = "\n".join(part["text"] for part in content)
        if strings:
            return joined
        if parts:
            return [{"type": "text", "text": joined}]
        raise TemplateRefused(
            f"the chat template {self.name} shows the content of {role} messages neither as a string nor as parts"
        )


def find_template(tokenizer: Any, tools: Sequence[Any], plain: bool) -> Template:
    """Return the template for a conversation with these tools; `plain` as in `clover.templates.render`.

    UserError if there is none.
    """
    name = tokenizer.name_or_path
    if not getattr(tokenizer, "chat_template", None):
        if not plain:
            raise UserError("the target's tokenizer has no chat template; give plain text, not messages")
        return Template(tokenizer, PLAIN_TEMPLATE)
    try:
        text: Any = tokenizer.get_chat_template(None, list(tools) or None)
    except ValueError as error:
        raise UserError(f"the tokenizer {name} has no default chat template: {error}") from error
    if not isinstance(text, str):
        raise UserError(f"the chat template of the tokenizer {name} is not text: {str(text)[:80]}")
    return Template(tokenizer, text)


@lru_cache(maxsize=64)
def _reads(template: Template, role: str) -> tuple[bool, float]:
    """Return whether a template renders the content of a role as a string, and how many parts of a list it renders.

    If it refuses everything, the surrounding messages may be the cause. Then strings count as rendered, and rendering
    the real conversation shows what is wrong.
    """
    words = [MARK + "a", MARK + "b"]
    listed = [{"type": "text", "text": word} for word in words]
    as_text, as_one, as_two = (list(_filled(template, role, one)) for one in (MARK, listed[:1], listed))
    if not (as_text or as_one or as_two):
        return True, 0
    # A template that expects a string writes a list as Python or JSON does, in quotes.
    quoted = re.compile(f"""text['"]: ?['"]{words[0]}""")
    two = any(0 <= text.find(words[0]) < text.find(words[1]) for text in as_two if not quoted.search(text))
    one = any(words[0] in text for text in as_one if not quoted.search(text))
    return any(MARK in text for text in as_text), math.inf if two else int(one)


def _filled(template: Template, role: str, content: Any) -> Iterator[str]:
    """Yield the renderings of conversations with such a message that the template accepts."""
    message = {"role": role, "content": content}
    if role == "tool":
        message |= {"name": KEY, "tool_call_id": _CALL_ID}
    call = {"id": _CALL_ID, "type": "function", "function": {"name": KEY, "arguments": {}}}
    surroundings: list[Callable[[], list[Message]]] = [lambda: [message]]
    if role != "user":
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        surroundings += [
            lambda: [_said(template), message],
            lambda: [message, _said(template)],
            lambda: [_said(template), calling, message],
        ]
    for conversation in surroundings:
        with suppress(TemplateRefused):
            yield template.fill(conversation())


def _said(template: Template) -> Message:
    """Return a user's message in the form that the template renders."""
    return template.readable({"role": "user", "content": "?"})


@dataclass(frozen=True)
class _CallForm:
    """The form of tool calls for a template: `arguments` as "object" or "string", and the content of their message."""

    arguments: str
    no_content: Any


@lru_cache(maxsize=16)
def _calls(template: Template) -> _CallForm | None:
    """Return the form of tool calls that a template renders; None if it renders none."""
    tool = {"name": KEY, "description": "?", "parameters": {"type": "object", "properties": {}}}
    for no_content, arguments, tools in _call_forms(template):
        wrong = str({MARK: _VALUE}) if arguments == "object" else f'\\"{MARK}'
        call = with_arguments({"function": {"name": KEY, "arguments": {MARK: _VALUE}}}, arguments)
        call |= {"id": _CALL_ID, "type": "function"}
        said = {"role": "assistant", "content": no_content, "tool_calls": [call]}
        described = [{"type": "function", "function": tool}] if tools else []
        try:
            text = template.fill([_said(template), said], described)
        except TemplateRefused:
            continue
        shown = all(word in text for word in (KEY, MARK, _VALUE)) and wrong not in text
        if shown and (no_content is not None or "None" not in text):
            return _CallForm(arguments, no_content)
    return None


def _call_forms(template: Template) -> Iterator[tuple[Any, str, bool]]:
    strings = _reads(template, "assistant")[0]
    for tools in (False, True):
        for no_content in ("" if strings else [{"type": "text", "text": ""}], None):
            for arguments in ("object", "string"):
                yield no_content, arguments, tools
