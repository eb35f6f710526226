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

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from jinja2 import TemplateError
from torch import Tensor

from clover.data.formats import Message, Record, read_records
from clover.errors import UserError

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
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError)

Span = tuple[int, int]  # characters of a rendered text, end excluded


@dataclass(frozen=True)
class Sample:
    """A training text. `tokens` Int [T]; `loss_mask` Bool [T], True where the token is to be learnt."""

    tokens: Tensor
    loss_mask: Tensor


@dataclass(frozen=True)
class TrainingData:
    """What was read: the samples, and how many records were left out because the chat template refuses them."""

    samples: tuple[Sample, ...]
    skipped: int
    first_problem: str | None


class TemplateRefused(UserError):
    """The chat template does not take this conversation, because its roles do not alternate, say."""


def read_samples(
    paths: Iterable[str | os.PathLike[str]],
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: Sequence[int] = (),
    stand_ins: bool = False,
) -> TrainingData:
    """Read and tokenize the training records of files (see `clover.data.formats`).

    Conversations that the chat template refuses (roles that do not alternate, say) are left out and counted.

    Args:
        eos_token_ids: the tokens on which the target stops; the tokenizer's own end-of-text token always counts.
        stand_ins: give each user turn and each prompt without an answer a dummy one, for the target to write anew.

    Raises:
        UserError: a file cannot be read or understood, or not one token of all the data is to be learnt.
    """
    samples: list[Sample] = []
    skipped, problem = 0, None
    for record in read_records(paths):
        if stand_ins:
            record = _with_stand_ins(record)
        try:
            samples += encode_record(record, tokenizer, eos_token_ids)
        except TemplateRefused as error:
            skipped += 1
            problem = problem or f"{record.where}: {error}"
    if not samples:
        raise UserError(problem or "the data holds no records")
    if not any(bool(sample.loss_mask.any()) for sample in samples):
        raise UserError(
            f"the loss mask is zero over all the data: with the chat template {describe_template(tokenizer)} "
            "not one token is the assistant's; records without answers need --regenerate"
        )
    return TrainingData(tuple(samples), skipped, problem)


def encode_record(
    record: Record, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int] = ()
) -> list[Sample]:
    """Tokenize one record: one sample, or one per assistant turn where the template rewrites earlier turns.

    Plain text gets the tokenizer's own special tokens, and an end-of-text token where it does not end on one.

    Raises:
        TemplateRefused: the chat template does not take the conversation.
        UserError: the assistant's words cannot be found in what the template makes of it.
    """
    stops = _stop_tokens(tokenizer, eos_token_ids)
    if not record.messages:
        return [_encode_plain(record, tokenizer, stops)]
    messages = list(record.messages)
    template = _template(tokenizer)
    if _GENERATION_TAG.search(template) and tokenizer.is_fast:
        options = {
            "return_dict": True,
            "return_assistant_tokens_mask": True,
            "tokenizer_kwargs": {"verbose": False},
        }
        encoding = _apply(tokenizer, messages, **options)
        return [_sample(encoding["input_ids"], encoding["assistant_masks"])]
    text = _render(tokenizer, messages)
    spans = _assistant_spans(tokenizer, messages, text)
    if spans is not None:
        return [_encode_spans(tokenizer, text, spans, stops)]
    answered = [k for k in range(1, len(messages)) if messages[k]["role"] == "assistant"]
    return [_encode_turn(tokenizer, messages[: k + 1], stops, record.where) for k in answered]


def encode_prompt(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a conversation with the opening of the assistant's next answer: the prompt to decode from.

    Raises:
        TemplateRefused: the chat template does not take the conversation.
    """
    return _tokenize(tokenizer, _render(tokenizer, list(messages), add_generation_prompt=True))[0]


def describe_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Name a tokenizer's chat template by its tokenizer and its first 80 characters, for error messages."""
    start = " ".join(_template(tokenizer)[:80].split())
    kind = "" if tokenizer.chat_template else ", which has none, so the plain format is used"
    return f'of {tokenizer.name_or_path or type(tokenizer).__name__} ("{start}…"{kind})'


def _with_stand_ins(record: Record) -> Record:
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


def _stop_tokens(tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int]) -> list[int]:
    end: Any = tokenizer.eos_token_id
    own: list[int] = [] if end is None else [end]
    return own + [token for token in eos_token_ids if token not in own]


def _encode_plain(record: Record, tokenizer: PreTrainedTokenizerBase, stops: list[int]) -> Sample:
    text = record.prompt + record.completion
    tokens, offsets = _tokenize(tokenizer, text, add_special_tokens=True)
    if not record.prompt:
        mask = [1] * len(tokens)
    else:
        mask = _mask(tokenizer, text, [(len(record.prompt), len(text))], tokens, offsets)
    if record.completion and stops and (not tokens or tokens[-1] not in stops):
        tokens, mask = [*tokens, stops[0]], [*mask, 1]
    return _sample(tokens, mask)


def _assistant_spans(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], text: str
) -> list[Span] | None:
    """Where the assistant speaks in `text`, or None if the template does not render turn by turn."""
    spans = []
    for k in range(1, len(messages)):
        if messages[k]["role"] == "assistant":
            opening = _render(tokenizer, messages[:k], add_generation_prompt=True)
            answered = _render(tokenizer, messages[: k + 1])
            if not (answered.startswith(opening) and text.startswith(answered)):
                return None
            spans.append((len(opening), len(answered)))
    return spans


def _encode_turn(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], stops: list[int], where: str
) -> Sample:
    """The last message alone is learnt; it starts where it parts from the opening that the template gives."""
    text = _render(tokenizer, messages)
    opening = _render(tokenizer, messages[:-1], add_generation_prompt=True)
    start = next((i for i, (a, b) in enumerate(zip(opening, text, strict=False)) if a != b), len(opening))
    if start < len(opening) and not text.startswith(_render(tokenizer, messages[:-1])):
        raise UserError(
            f"{where}: the chat template {describe_template(tokenizer)} renders the same turns differently before and "
            "after an answer, so the answer cannot be found; mark it with {% generation %} in the template"
        )
    return _encode_spans(tokenizer, text, [(start, len(text))], stops)


def _encode_spans(
    tokenizer: PreTrainedTokenizerBase, text: str, spans: list[Span], stops: list[int]
) -> Sample:
    tokens, offsets = _tokenize(tokenizer, text)
    mask = [0] * len(tokens)
    for span in spans:
        learnt = [i for i, one in enumerate(_mask(tokenizer, text, [span], tokens, offsets)) if one]
        last_stop = max((i for i in learnt if tokens[i] in stops), default=len(tokens))
        for i in learnt:
            mask[i] = int(i <= last_stop)  # what the template writes after the end of a turn is its own
    return _sample(tokens, mask)


def _mask(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    spans: list[Span],
    tokens: list[int],
    offsets: list[Span] | None,
) -> list[int]:
    """1 for every token that covers a character of a span."""
    if offsets is not None:
        return [int(any(a < end and b > start and a < b for start, end in spans)) for a, b in offsets]
    mask = [0] * len(tokens)
    for start, end in spans:
        before, until = (_tokenize(tokenizer, text[:n])[0] for n in (start, end))
        if tokens[: len(before)] != before or tokens[: len(until)] != until:
            raise UserError(
                f"{type(tokenizer).__name__} cannot say which characters a token covers, and the tokens of an answer "
                "depend on what stands before it; use a fast tokenizer"
            )
        mask[len(before) : len(until)] = [1] * (len(until) - len(before))
    return mask


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, text: str, add_special_tokens: bool = False
) -> tuple[list[int], list[Span] | None]:
    encoding: Any = tokenizer(
        text,
        add_special_tokens=add_special_tokens,
        return_offsets_mapping=bool(tokenizer.is_fast),
        verbose=False,
    )
    return encoding["input_ids"], encoding.get("offset_mapping")


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], add_generation_prompt: bool = False
) -> str:
    return _apply(tokenizer, messages, tokenize=False, add_generation_prompt=add_generation_prompt)


def _apply(tokenizer: PreTrainedTokenizerBase, messages: list[Message], **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(messages, chat_template=_template(tokenizer), **options)
    except _TEMPLATE_ERRORS as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise TemplateRefused(
            f"the chat template {describe_template(tokenizer)} refuses it: {reason}"
        ) from error


def _sample(tokens: Sequence[int], mask: Sequence[int]) -> Sample:
    return Sample(torch.tensor(tokens, dtype=torch.int32), torch.tensor(mask, dtype=torch.bool))
