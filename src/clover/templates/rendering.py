"""Render conversations, and tokenize what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.meta
from jinja2.ext import Extension

from clover.errors import UserError
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
    """Return a conversation as the chat template writes it, special tokens included.

    Args:
        tokenizer: of the model.
        messages: what is said, with `content` as a string or a list of parts of type text.
        tools: descriptions of functions, which the template shows to the model.
        answer: whether the opening of the assistant's next answer follows.
        plain: whether a tokenizer without a template gets `PLAIN_TEMPLATE`.
        options: what else the template reads, such as `enable_thinking`.

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
                raise UserError(f"a message holds {name[:_SHOWN]!r}, but the target reads text alone")
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
            f"the chat template {template.name} leaves out a part of message {lost + 1}, of the role "
            f"{given[lost].get('role')}"
        )
    return text


def check_template_options(tokenizer: Any, options: Mapping[str, Any], tools: Sequence[Any] = ()) -> None:
    """Raise UserError for the first name among the options of `render` that the chat template does not read."""
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
    """Return the token ids of what a chat template wrote, which has its special tokens already."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text to continue, with what the tokenizer puts before it."""
    tokens = list(tokenizer(text, verbose=False)["input_ids"])
    return tokens[spare_bos(tokenizer, tokens) : len(tokens) - spare_eos(tokenizer, text, tokens)]


def spare_bos(tokenizer: Any, tokens: Sequence[int]) -> int:
    """Return how many tokens at the beginning are too many: a text has one beginning-of-sequence token.

    A tokenizer adds one to a text that spells it out already, as what a chat template wrote does.
    """
    bos = tokenizer.bos_token_id
    count = next((i for i, token in enumerate(tokens) if token != bos), len(tokens))
    return max(0, count - 1) if bos is not None else 0


def spare_eos(tokenizer: Any, text: str, tokens: Sequence[int]) -> int:
    """Return how many tokens at the end are too many in a text that is to be continued.

    A tokenizer with `add_eos_token` puts the end of a sequence there, after which a model begins something else.
    """
    eos, name = tokenizer.eos_token_id, tokenizer.eos_token
    return int(eos is not None and tokens[-1:] == [eos] and len(tokens) > 1 and not text.endswith(name))


def answer_start(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
    """Return what stands before the words of a finished answer that follows these messages; "" if that is unknown."""
    with suppress(TemplateRefused):
        said = [*messages, {"role": "assistant", "content": MARK}]
        return render(tokenizer, said, tools, plain=True).rpartition(MARK)[0]
    return ""


def template_name(tokenizer: Any) -> str:
    """Return whose the chat template is, and its first 80 characters."""
    return find_template(tokenizer, (), plain=True).name


@lru_cache(maxsize=64)
def _options_of(template: Template) -> frozenset[str]:
    """Return the names that a template reads from outside, but for those that `fill` and the tokenizer give it."""
    environment = jinja2.Environment(extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"])
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(template.text))
    except jinja2.TemplateSyntaxError:
        return frozenset()
    given = {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        *template.tokenizer.special_tokens_map,
    }
    return frozenset(names - given - {"raise_exception", "strftime_now"})


class _GenerationBlock(Extension):
    """The block `{% generation %}`, which transformers knows; only what is read inside matters here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        """Return the statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
