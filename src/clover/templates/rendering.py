"""Render conversations, and tokenize the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any

import jinja2
import jinja2.meta
from jinja2.ext import Extension

from clover.errors import UserError
from clover.files import check_characters
from clover.templates.calls import Message, with_wrappers, wrapped
from clover.templates.shown import hidden_tools, lost_message, media_in
from clover.templates.template import MARK, Template, TemplateRefused, find_template

_SHOWN = 40  # characters of a name in a message


def render(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[Any] = (),
    *,
    answer: bool = False,
    plain: bool = False,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Render a conversation by the chat template, with special tokens.

    Args:
        tokenizer: the model's tokenizer.
        messages: the messages, with `content` as a string or a list of parts of type text.
        tools: descriptions of functions, which the template shows to the model.
        answer: whether to add the opening of the assistant's next answer.
        plain: whether to use `PLAIN_TEMPLATE` if the tokenizer has no template.
        options: other variables of the template, such as `enable_thinking`.

    Raises:
        TemplateRefused: the template fails, or does not show the words, the calls or the tools of the conversation.
        UserError: there is no template, or it does not read one of the options.
    """
    template = find_template(tokenizer, tools, plain)
    check_template_options(tokenizer, options or {}, tools)
    for message in messages:
        parts = message.get("content")
        for one in (message, *(parts if isinstance(parts, list | tuple) else ())):
            if isinstance(one, Mapping) and (name := media_in(one)):
                raise UserError(f"a message holds {name[:_SHOWN]!r}, but the target reads only text")
    given = [template.readable(message) for message in messages]
    try:
        text = template.fill(given, tools, answer, options)
        hidden = hidden_tools(given, tools, text)
    except TemplateRefused:
        if not any((*tools, *(one.get("tool_calls") for one in given))):
            raise
        text, hidden = "", [""]
    if hidden:
        given, tools = [with_wrappers(one) for one in given], [wrapped(tool) for tool in tools]
        text = template.fill(given, tools, answer, options)
        hidden = hidden_tools(given, tools, text)
    if hidden:
        raise TemplateRefused(f"the chat template {template.name} does not show the tool {hidden[0]!r}")
    if (lost := lost_message(template, given, tools, text, answer, options)) is not None:
        raise TemplateRefused(
            f"the chat template {template.name} leaves out a part of message {lost + 1}, which has the role "
            f"{given[lost].get('role')}"
        )
    return text


def check_template_options(tokenizer: Any, options: Mapping[str, Any], tools: Sequence[Any] = ()) -> None:
    """Raise UserError for the first option of `render` that the chat template does not read."""
    if not options:
        return
    template = find_template(tokenizer, tools, plain=False)
    known = _options_of(template)
    if unread := sorted(options.keys() - known):
        shown = ", ".join(sorted(known)) or "none"
        raise UserError(
            f"the chat template {template.name} does not read {unread[0][:_SHOWN]!r}; it reads {shown}"
        )


def encode_rendered(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a rendering, which already has its special tokens.

    UserError for half a character, here and in `encode_text`.
    """
    check_characters(text, "the prompt")
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text to continue, with the special tokens that the tokenizer puts before it."""
    check_characters(text, "the prompt")
    tokens = list(tokenizer(text, verbose=False)["input_ids"])
    return tokens[spare_bos(tokenizer, tokens) : len(tokens) - spare_eos(tokenizer, text, tokens)]


def spare_bos(tokenizer: Any, tokens: Sequence[int]) -> int:
    """Return the number of superfluous beginning-of-sequence tokens at the beginning.

    A tokenizer adds this token even to a text that already contains it, as a chat template's rendering does.
    """
    bos = tokenizer.bos_token_id
    count = next((i for i, token in enumerate(tokens) if token != bos), len(tokens))
    return max(0, count - 1) if bos is not None else 0


def spare_eos(tokenizer: Any, text: str, tokens: Sequence[int]) -> int:
    """Return the number of superfluous tokens at the end of a text that is to be continued.

    A tokenizer with `add_eos_token` ends the sequence there, and a model would begin another text after it.
    """
    eos, name = tokenizer.eos_token_id, tokenizer.eos_token
    if eos is None or not name or len(tokens) < 2:
        return 0
    said = next(times for times in count() if not text.endswith(name * (times + 1)))
    return int(list(tokens[-said - 1 :]) == [eos] * (said + 1))


def answer_start(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
    """Return the rendering of these messages and a finished answer, up to the answer's words; "" if unknown."""
    with suppress(TemplateRefused):
        said = [*messages, {"role": "assistant", "content": MARK}]
        return render(tokenizer, said, tools, plain=True).rpartition(MARK)[0]
    return ""


def template_name(tokenizer: Any) -> str:
    """Return the owner of the chat template, and its first 80 characters."""
    return find_template(tokenizer, (), plain=True).name


@lru_cache(maxsize=64)
def _options_of(template: Template) -> frozenset[str]:
    """Return the variables that a template reads, without those that `fill` and the tokenizer set."""
    environment = jinja2.Environment(extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"])
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(template.text))
    except jinja2.TemplateSyntaxError:
        return frozenset()
    given = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
    return frozenset(names - given - template.tokenizer.special_tokens_map.keys())


class _GenerationBlock(Extension):
    """The block `{% generation %}` of transformers; here only the variables inside matter."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        """Return the statements inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
