"""How a chat template renders a conversation: one way for generating, chat, the server, training and measuring.

A template is a program that comes with a model. It may read `content` as a string or as a list of parts, and the
arguments of a tool call as an object or as JSON; what it does not read it passes over without a word. So each template
is tried out once, with words that occur nowhere else, and is then given what it renders. What it renders in no form is
refused.

A tokenizer without a template gets `PLAIN_TEMPLATE` where a model is trained or measured. Whoever talks with such a
model gets an error, because it is no chat model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from clover.errors import UserError, one_line

Message = Mapping[str, Any]

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "Assistant: {{ message['content'] }}{{ eos_token or '' }}{{ '\n\n' }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% else %}User: {{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_MARK, _KEY, _VALUE = "Quorvex", "zimbolt", "Wraxley"  # words that no template writes by itself
REASONING = ("reasoning_content", "reasoning", "thinking")  # fields of a message that templates read it from
_CALL_ID = "abcdefghi"  # Mistral's templates accept nine letters and digits only


class TemplateRefused(UserError):
    """The chat template does not render this conversation, because its roles do not alternate, say."""


def render(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[Any] = (),
    *,
    answer: bool = False,
    plain: bool = False,
) -> str:
    """Return a conversation as the chat template writes it, special tokens included.

    Args:
        tokenizer: of the model.
        messages: what is said, with `content` as a string or a list of parts of type text.
        tools: descriptions of functions, which the template shows to the model.
        answer: whether the opening of the assistant's next answer follows.
        plain: whether a tokenizer without a template gets `PLAIN_TEMPLATE`.

    Raises:
        TemplateRefused: the template fails, or does not show the content, the calls or the tools of the conversation.
        UserError: there is no template.
    """
    template = _template(tokenizer, tools, plain)
    given = [template.readable(message) for message in messages]
    text = template.fill(given, tools, answer)
    names = [_function(call).get("name") for one in given for call in one.get("tool_calls") or ()]
    described = [_function(tool).get("name") for tool in tools] if names else []
    if hidden := [name for name in (*names, *described) if str(name) not in text]:
        raise TemplateRefused(f"the chat template {template.name} does not show the tool {hidden[0]!r}")
    return text


def encode_rendered(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of what a chat template wrote, which has its special tokens already."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text with what the tokenizer puts before it; see `spare_bos`."""
    tokens = list(tokenizer(text, verbose=False)["input_ids"])
    return tokens[spare_bos(tokenizer, tokens) :]


def spare_bos(tokenizer: Any, tokens: Sequence[int]) -> int:
    """Return how many tokens at the beginning are too many: a text has one beginning-of-sequence token.

    A tokenizer adds one to a text that spells it out already, as what a chat template wrote does.
    """
    bos = tokenizer.bos_token_id
    count = next((i for i, token in enumerate(tokens) if token != bos), len(tokens))
    return max(0, count - 1) if bos is not None else 0


def answer_start(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
    """Return what stands before the words of a finished answer that follows these messages; "" if that is unknown."""
    with suppress(TemplateRefused):
        said = [*messages, {"role": "assistant", "content": _MARK}]
        return render(tokenizer, said, tools, plain=True).rpartition(_MARK)[0]
    return ""


def describe(tokenizer: Any) -> str:
    """Return whose the chat template is, and its first 80 characters."""
    return _template(tokenizer, (), plain=True).name


@dataclass(frozen=True)
class _Template:
    """A template and what it reads. `tokenizer` fills it in; `text` is the program."""

    tokenizer: Any
    text: str

    @property
    def name(self) -> str:
        start = " ".join(self.text[:80].split())
        kind = "" if self.tokenizer.chat_template else ", which has none, so the plain format is used"
        owner = self.tokenizer.name_or_path or type(self.tokenizer).__name__
        return f'of {owner} ("{start}…"{kind})'

    def fill(self, messages: Sequence[Message], tools: Sequence[Any] = (), answer: bool = False) -> str:
        options = {"tokenize": False, "add_generation_prompt": answer, "tools": list(tools) or None}
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), chat_template=self.text, **options))
        except Exception as error:  # the template is a program of its own, which may raise anything
            raise TemplateRefused(f"the chat template {self.name} refuses it: {one_line(error)}") from error

    def readable(self, message: Message) -> dict[str, Any]:
        """Return a message in the form that the template renders."""
        given = {key: value for key, value in message.items() if value is not None}
        content, calls = given.get("content"), given.get("tool_calls")
        if reasoning := next((given[name] for name in REASONING if given.get(name)), None):
            given |= {name: reasoning for name in REASONING if name in self.text}
        if calls:
            form = _calls(self)
            if form is None:
                raise TemplateRefused(f"the chat template {self.name} shows no tool calls")
            given["tool_calls"] = [_with_arguments(call, form.arguments) for call in calls]
            if not content:
                return given | {"content": form.no_content}
        if content is None and any(given.get(name) for name in REASONING):
            content = ""
        return given | {"content": self._content(str(given.get("role")), content)}

    def _content(self, role: str, content: Any) -> Any:
        strings, parts = _reads(self, role)
        if isinstance(content, str) and strings:
            return content
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list | tuple) or not all(
            isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
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


def _template(tokenizer: Any, tools: Sequence[Any], plain: bool) -> _Template:
    name = tokenizer.name_or_path
    if not getattr(tokenizer, "chat_template", None):
        if not plain:
            raise UserError("the target's tokenizer has no chat template; give plain text, no messages")
        return _Template(tokenizer, PLAIN_TEMPLATE)
    try:
        text: Any = tokenizer.get_chat_template(None, list(tools) or None)
    except ValueError as error:
        raise UserError(f"the tokenizer {name} has no default chat template: {error}") from error
    if not isinstance(text, str):
        raise UserError(f"the chat template of the tokenizer {name} is no text: {str(text)[:80]}")
    return _Template(tokenizer, text)


@lru_cache(maxsize=64)
def _reads(template: _Template, role: str) -> tuple[bool, float]:
    """Return whether a template renders the content of a role as a string, and how many parts of a list it renders.

    Where it refuses all, what surrounds the message may be the cause; then strings count as read, and the conversation
    itself shows what is wrong.
    """
    words = [_MARK + "a", _MARK + "b"]
    listed = [{"type": "text", "text": word} for word in words]
    as_text, as_one, as_two = (list(_filled(template, role, one)) for one in (_MARK, listed[:1], listed))
    if not (as_text or as_one or as_two):
        return True, 0
    # A template that expects a string writes a list as Python or JSON does, in quotes.
    quoted = re.compile(f"""text['"]: ?['"]{words[0]}""")
    two = any(0 <= text.find(words[0]) < text.find(words[1]) for text in as_two if not quoted.search(text))
    one = any(words[0] in text for text in as_one if not quoted.search(text))
    return any(_MARK in text for text in as_text), math.inf if two else int(one)


def _filled(template: _Template, role: str, content: Any) -> Iterator[str]:
    """Yield the renderings of conversations with such a message, as far as the template accepts them."""
    message = {"role": role, "content": content}
    if role == "tool":
        message |= {"name": _KEY, "tool_call_id": _CALL_ID}
    call = {"id": _CALL_ID, "type": "function", "function": {"name": _KEY, "arguments": {}}}
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


def _said(template: _Template) -> Message:
    """Return a user's message in the form that the template renders."""
    return template.readable({"role": "user", "content": "?"})


@dataclass(frozen=True)
class _CallForm:
    """How a template reads tool calls: `arguments` as "object" or "string", and the content beside them."""

    arguments: str
    no_content: Any


@lru_cache(maxsize=16)
def _calls(template: _Template) -> _CallForm | None:
    """Return the form of tool calls that a template renders, None if it renders none."""
    tool = {"name": _KEY, "description": "?", "parameters": {"type": "object", "properties": {}}}
    for no_content, arguments, tools in _call_forms(template):
        wrong = str({_MARK: _VALUE}) if arguments == "object" else f'\\"{_MARK}'
        call = _with_arguments({"function": {"name": _KEY, "arguments": {_MARK: _VALUE}}}, arguments)
        call |= {"id": _CALL_ID, "type": "function"}
        said = {"role": "assistant", "content": no_content, "tool_calls": [call]}
        described = [{"type": "function", "function": tool}] if tools else []
        try:
            text = template.fill([_said(template), said], described)
        except TemplateRefused:
            continue
        shown = all(word in text for word in (_KEY, _MARK, _VALUE)) and wrong not in text
        if shown and (no_content is not None or "None" not in text):
            return _CallForm(arguments, no_content)
    return None


def _call_forms(template: _Template) -> Iterator[tuple[Any, str, bool]]:
    strings = _reads(template, "assistant")[0]
    for tools in (False, True):
        for no_content in ("" if strings else [{"type": "text", "text": ""}], None):
            for arguments in ("object", "string"):
                yield no_content, arguments, tools


def _function(call: Any) -> Mapping[str, Any]:
    """Return the function of a call or of a tool, which may also stand without a wrapper."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError("a tool, or a call of one, must be an object with the name of a function")
    return function


def _with_arguments(call: Mapping[str, Any], form: str) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, or as the JSON of one."""
    if (function := _function(call)) is not call:
        return {**call, "function": _with_arguments(function, form)}
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise UserError(f"the arguments of the tool call {call.get('name')!r} are no JSON object")
        arguments = parsed if form == "object" else arguments
    elif form == "string":
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "arguments": arguments}
