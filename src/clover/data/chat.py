"""Turn records into token sequences with a loss mask: which tokens the draft learns to predict.

Conversations go through the tokenizer's chat template, and only what the assistant says is learnt, its end-of-turn
token included. Where a template marks the assistant's words with `{% generation %}`, that is used. Otherwise the
conversation is rendered up to each assistant turn, once with the opening of the answer and once with the answer, and
the loss mask is what the second has more. That holds only if both are beginnings of the whole conversation; templates
that rewrite earlier turns (Qwen3's drops their thinking) break it. Such a conversation becomes one sample per
assistant turn, each rendered as far as that turn, which is also what the target sees when it answers there.

A tokenizer without a template gets `PLAIN_TEMPLATE`: "User: …", "Assistant: …", blank lines between, an end-of-text
token after each answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor

from clover.data.formats import Message, Record
from clover.errors import UserError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "Assistant:{% generation %} {{ message['content'] }}{{ eos_token or '' }}{% endgeneration %}{{ '\n\n' }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% else %}User: {{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_STAND_IN = "…"
_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]  # characters of a rendered text, end excluded


@dataclass(frozen=True)
class Sample:
    """A training text. `tokens` Int [T]; `loss_mask` Bool [T], True where the token is to be learnt."""

    tokens: Tensor
    loss_mask: Tensor

    @property
    def size(self) -> int:
        """Tokens."""
        return len(self.tokens)

    def digest(self) -> bytes:
        """A hash of tokens and mask."""
        content = self.tokens.to(torch.int32).numpy().tobytes() + self.loss_mask.numpy().tobytes()
        return hashlib.blake2b(content, digest_size=16).digest()


@dataclass(frozen=True)
class _Text:
    """A text to tokenize: the spans of it that are learnt, all of it if None, and whether it is a conversation.

    A conversation has its special tokens already. A plain text that is `open` is to be continued, and gets no end.
    """

    text: str
    spans: list[Span] | None
    chat: bool = False
    open: bool = False


class TemplateRefused(UserError):
    """The chat template does not take this conversation, because its roles do not alternate, say."""


def encode_records(
    records: Iterable[Record],
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: Sequence[int] = (),
    refused: Callable[[Record, UserError], None] | None = None,
) -> list[Sample]:
    """Tokenize records together, on all cores: one sample of each, or one per assistant turn where the template
    rewrites earlier turns.

    Plain text gets the tokenizer's own special tokens, and an end-of-text token where it does not end on one.

    Args:
        eos_token_ids: the tokens on which the target stops; the tokenizer's own end-of-text token always counts.
        refused: called with a record that the chat template does not take, which is then left out.

    Raises:
        TemplateRefused: the chat template does not take a conversation, and `refused` is not given.
        UserError: the assistant's words cannot be found in what the template makes of a conversation.
    """
    texts: list[_Text] = []
    for record in records:
        try:
            texts += _render_record(record, tokenizer)
        except TemplateRefused as error:
            if refused is None:
                raise
            refused(record, error)
    end: Any = tokenizer.eos_token_id
    stops = [] if end is None else [end]
    stops += [token for token in eos_token_ids if token not in stops]
    tokenized: dict[int, Sample] = {}
    for chat in (True, False):
        some = [i for i, text in enumerate(texts) if text.chat == chat]
        encoded = _tokenize(tokenizer, [texts[i].text for i in some], add_special_tokens=not chat)
        for i, (tokens, offsets) in zip(some, encoded, strict=True):
            tokenized[i] = _sample(texts[i], tokens, offsets, tokenizer, stops)
    return [tokenized[i] for i in range(len(texts))]


def check_learnt(samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError if not one token of the samples is to be learnt; it names the chat template."""
    if not any(bool(sample.loss_mask.any()) for sample in samples):
        raise UserError(
            f"the loss mask is zero over all the data: with the chat template {describe_template(tokenizer)} "
            "not one token is the assistant's; records without answers need --regenerate"
        )


def encode_prompt(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a conversation with the opening of the assistant's next answer: the prompt to decode from.

    Raises:
        TemplateRefused: the chat template does not take the conversation.
    """
    text = _render(tokenizer, list(messages), add_generation_prompt=True)
    return _tokenize(tokenizer, [text], add_special_tokens=False)[0][0]


def describe_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Name a tokenizer's chat template by its tokenizer and its first 80 characters, for error messages."""
    start = " ".join(_template(tokenizer)[:80].split())
    kind = "" if tokenizer.chat_template else ", which has none, so the plain format is used"
    return f'of {tokenizer.name_or_path or type(tokenizer).__name__} ("{start}…"{kind})'


def with_stand_ins(record: Record) -> Record:
    """The record with a dummy answer to each user turn and each prompt that has none, for the target to write anew."""
    if not record.messages:
        return replace(record, completion=record.completion or _STAND_IN)
    messages: list[Message] = []
    for message, after in zip_longest(record.messages, record.messages[1:]):
        messages.append(message)
        if message["role"] == "user" and (after is None or after["role"] == "user"):
            messages.append({"role": "assistant", "content": _STAND_IN})
    return replace(record, messages=tuple(messages))


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        return tokenizer.get_chat_template() if tokenizer.chat_template else PLAIN_TEMPLATE
    except ValueError as error:
        raise UserError(
            f"the tokenizer {tokenizer.name_or_path} has no default chat template: {error}"
        ) from error


def _render_record(record: Record, tokenizer: PreTrainedTokenizerBase) -> list[_Text]:
    if not record.messages:
        text = record.prompt + record.completion
        spans = [(len(record.prompt), len(text))] if record.prompt else None
        return [_Text(text, spans, open=not record.completion)]
    messages = list(record.messages)
    if _GENERATION_TAG.search(_template(tokenizer)):
        return [_Text(*_render_marked(tokenizer, messages), chat=True)]
    text = _render(tokenizer, messages)
    spans = _assistant_spans(tokenizer, messages, text)
    if spans is not None:
        return [_Text(text, spans, chat=True)]
    answered = [k for k in range(1, len(messages)) if messages[k]["role"] == "assistant"]
    return [_render_turn(tokenizer, messages[: k + 1], record.where) for k in answered]


def _assistant_spans(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], text: str
) -> list[Span] | None:
    """Where the assistant speaks in `text`, or None if the template does not render turn by turn."""
    spans = []
    for k in range(1, len(messages)):
        if messages[k]["role"] == "assistant":
            opening = _render(tokenizer, messages[:k], add_generation_prompt=True)
            answered = text if k + 1 == len(messages) else _render(tokenizer, messages[: k + 1])
            if not (answered.startswith(opening) and text.startswith(answered)):
                return None
            spans.append((len(opening), len(answered)))
    return spans


def _render_turn(tokenizer: PreTrainedTokenizerBase, messages: list[Message], where: str) -> _Text:
    """The last message alone is learnt; it starts where it parts from the opening that the template gives."""
    text = _render(tokenizer, messages)
    opening = _render(tokenizer, messages[:-1], add_generation_prompt=True)
    start = next((i for i, (a, b) in enumerate(zip(opening, text, strict=False)) if a != b), len(opening))
    if start < len(opening) and not text.startswith(_render(tokenizer, messages[:-1])):
        raise UserError(
            f"{where}: the chat template {describe_template(tokenizer)} renders the same turns differently before and "
            "after an answer, so the answer cannot be found; mark it with {% generation %} in the template"
        )
    return _Text(text, [(start, len(text))], chat=True)


def _sample(
    text: _Text,
    tokens: list[int],
    offsets: list[Span] | None,
    tokenizer: PreTrainedTokenizerBase,
    stops: Sequence[int],
) -> Sample:
    mask = np.full(len(tokens), text.spans is None)
    for span in text.spans or ():
        learnt = _covered(text.text, span, tokens, offsets, tokenizer)
        if text.chat:  # what the template writes after the end of a turn is its own
            last_stop = max((i for i in learnt if tokens[i] in stops), default=len(tokens))
            learnt = learnt[learnt <= last_stop]
        mask[learnt] = True
    if not (text.chat or text.open) and stops and (not tokens or tokens[-1] not in stops):
        tokens, mask = [*tokens, stops[0]], np.append(mask, True)
    return Sample(torch.tensor(tokens, dtype=torch.int32), torch.from_numpy(mask))


def _covered(
    text: str,
    span: Span,
    tokens: list[int],
    offsets: list[Span] | None,
    tokenizer: PreTrainedTokenizerBase,
) -> np.ndarray:
    """The indices of the tokens that cover a character of a span."""
    if offsets is not None:
        start, end = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
        return np.flatnonzero((start < span[1]) & (end > span[0]) & (start < end))
    before, until = (_tokenize(tokenizer, [text[:n]], add_special_tokens=False)[0][0] for n in span)
    if tokens[: len(before)] != before or tokens[: len(until)] != until:
        raise UserError(
            f"{type(tokenizer).__name__} cannot say which characters a token covers, and the tokens of an answer "
            "depend on what stands before it; use a fast tokenizer"
        )
    return np.arange(len(before), len(until))


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], add_special_tokens: bool
) -> list[tuple[list[int], list[Span] | None]]:
    """Token ids of each text, and the characters that each token covers where the tokenizer can say it."""
    if not texts:
        return []
    fast = bool(tokenizer.is_fast)
    encoding: Any = tokenizer(
        texts, add_special_tokens=add_special_tokens, return_offsets_mapping=fast, verbose=False
    )
    offsets = encoding["offset_mapping"] if fast else [None] * len(texts)
    return list(zip(encoding["input_ids"], offsets, strict=True))


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], add_generation_prompt: bool = False
) -> str:
    apply = partial(tokenizer.apply_chat_template, messages, tokenize=False)
    return _guarded(tokenizer, apply, add_generation_prompt=add_generation_prompt)


def _render_marked(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> tuple[str, list[Span]]:
    """The conversation, and the spans of it that the template marks as the assistant's."""
    from transformers.utils.chat_template_utils import render_jinja_template

    apply: Any = partial(render_jinja_template, [messages], **tokenizer.special_tokens_map)
    (text,), (spans,) = _guarded(tokenizer, apply, return_assistant_tokens_mask=True)
    return text, spans


def _guarded(tokenizer: PreTrainedTokenizerBase, apply: Callable[..., Any], **options: bool) -> Any:
    try:
        return apply(chat_template=_template(tokenizer), **options)
    except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise TemplateRefused(
            f"the chat template {describe_template(tokenizer)} refuses it: {one_line(error)}"
        ) from error
