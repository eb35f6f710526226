"""Turn records into token sequences with a loss mask: which tokens the draft learns to predict.

Conversations go through the tokenizer's chat template (`PLAIN_TEMPLATE` without one), and only what the assistant
says is learnt, its end-of-turn token included. A conversation is rendered up to each assistant turn, with the opening
of the answer and with the answer; what the second has more is learnt. That holds only if both are beginnings of the
whole conversation. Where templates rewrite earlier turns (Qwen3's drops their thinking) there is one sample per
assistant turn, rendered as far as that turn, which is also what the target sees when it answers there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from clover.data.formats import Message, Record, RecordRefused, WrittenSample
from clover.errors import UserError, one_line

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "Assistant: {{ message['content'] }}{{ eos_token or '' }}{{ '\n\n' }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% else %}User: {{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_STAND_IN = "…"
_MAX_TURNS = 1000  # of a conversation: what is rendered, and the time that it takes, grow with their square
_TOGETHER = 2**20  # characters that are tokenized at a time; a token takes some hundred bytes meanwhile

Span = tuple[int, int]  # characters of a rendered text, end excluded


@dataclass(frozen=True)
class Sample:
    """A training text. `tokens` Int [T]; `loss_mask` Bool [T], True where the token is to be learnt."""

    tokens: Tensor
    loss_mask: Tensor

    @property
    def size(self) -> int:
        """Return the number of tokens."""
        return len(self.tokens)

    def part(self, start: int, stop: int) -> Sample:
        """Return tokens `start` to `stop` alone."""
        return Sample(self.tokens[start:stop], self.loss_mask[start:stop])

    def digest(self) -> bytes:
        """Return a hash of tokens and mask."""
        content = self.tokens.to(torch.int32).numpy().tobytes() + self.loss_mask.numpy().tobytes()
        return hashlib.blake2b(content, digest_size=16).digest()


@dataclass(frozen=True)
class _Text:
    """A text to tokenize and the spans of it that are learnt, all if None.

    A conversation has its special tokens already. A plain text that is `open` is to be continued, and gets no end.
    What `clover write` wrote is a `sample` already.
    """

    text: str
    spans: list[Span] | None
    chat: bool = False
    open: bool = False
    sample: Sample | None = None


class TemplateRefused(RecordRefused):
    """The chat template does not take this conversation, because its roles do not alternate, say."""


def encode_records(
    records: Iterable[Record],
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: Sequence[int] = (),
    refused: Callable[[Record, UserError], None] | None = None,
    vocab_size: int | None = None,
) -> list[Sample]:
    """Tokenize records together, on all cores: one sample of each, or one per assistant turn where the template
    rewrites earlier turns.

    Plain text gets the tokenizer's own special tokens, and an end-of-text token where it does not end on one.

    Args:
        eos_token_ids: the tokens on which the target stops; the tokenizer's own end-of-text token always counts.
        refused: called with a record that is left out: the chat template does not take it, it has too many turns, or
            a token that is not below `vocab_size`, if given; without `refused` a UserError is raised.

    Raises:
        UserError: the assistant's words cannot be found in what the template makes of a conversation, or the
            tokenizer cannot say which characters a token covers.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} cannot say which characters a token covers; take a fast one"
        )
    leave_out, texts, owners = refused or _refuse, list[_Text](), list[Record]()
    for record in records:
        try:
            rendered = _render_record(record, tokenizer)
        except RecordRefused as error:
            leave_out(record, error)
            continue
        texts += rendered
        owners += [record] * len(rendered)
    samples = [sample for part in _parts(texts) for sample in _tokenize(part, tokenizer, eos_token_ids)]
    if vocab_size is None:
        return samples
    fit: list[Sample] = []
    for _, group in groupby(zip(owners, samples, strict=True), key=lambda one: id(one[0])):
        (record, *_), own = zip(*group, strict=True)
        try:
            check_tokens(own, vocab_size)
        except UserError as error:
            leave_out(record, error)
            continue
        fit += own
    return fit


def _refuse(_record: Record, error: UserError) -> None:
    raise error


def check_tokens(samples: Iterable[Sample], vocab_size: int) -> None:
    """Raise UserError if samples hold a token that the target does not know."""
    for sample in samples:
        for token in map(int, sample.tokens.aminmax()) if sample.size else ():
            if not 0 <= token < vocab_size:
                raise UserError(
                    f"the texts hold token {token}, but the target knows {vocab_size}: another tokenizer made them"
                )


def check_learnt(samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError if not one token of the samples is to be learnt; it names the chat template."""
    if not any(bool(sample.loss_mask.any()) for sample in samples):
        raise UserError(
            f"the loss mask is zero over all the data: with the chat template {_describe_template(tokenizer)} "
            "not one token is the assistant's; records without answers need --regenerate or `clover write`"
        )


def encode_prompt(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return token ids of a conversation with the opening of the next answer: the prompt to decode from.

    TemplateRefused if the chat template does not take the conversation.
    """
    return encode_rendered(tokenizer, render_prompt(messages, tokenizer))


def encode_user_opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return token ids of what stands before a user's first words; UserError if no chat template says so."""
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer {tokenizer.name_or_path} has no chat template, so the target asks nothing"
        )
    opening, found, _ = _render(tokenizer, [{"role": "user", "content": _STAND_IN}]).partition(_STAND_IN)
    if not (opening and found):
        raise UserError(
            f"the chat template {_describe_template(tokenizer)} writes nothing before a user's words"
        )
    return encode_rendered(tokenizer, opening)


def render_prompt(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a conversation with the opening of the assistant's next answer, as text.

    TemplateRefused if the chat template does not take the conversation.
    """
    return _render(tokenizer, list(messages), add_generation_prompt=True)


@lru_cache(maxsize=4)
def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return 12 hexadecimal digits that stand for the tokens of a tokenizer and their ids."""
    tokens = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(tokens.encode(), digest_size=6).hexdigest()


def encode_rendered(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the token ids of what a chat template wrote, which has its special tokens already."""
    encoded: Any = tokenizer(text, add_special_tokens=False, verbose=False)
    return list(encoded["input_ids"])


def _render_record(record: Record, tokenizer: PreTrainedTokenizerBase) -> list[_Text]:
    if (written := record.written) is not None:
        if written.tokenizer in ("", vocabulary_hash(tokenizer)):
            return [_Text("", None, sample=_written_sample(one)) for one in written.samples]
        if written.cut:
            raise RecordRefused("its last answer was cut off, and a model with another tokenizer wrote it")
    if not record.messages:
        text = record.prompt + record.completion
        spans = [(len(record.prompt), len(text))] if record.prompt else None
        return [_Text(text, spans, open=not record.completion)]
    messages = list(record.messages)
    if len(messages) > _MAX_TURNS:
        raise RecordRefused(f"a conversation of {len(messages):,} turns; cut it to {_MAX_TURNS:,}")
    text, answered = _render(tokenizer, messages), _answered(messages)
    spans = _assistant_spans(tokenizer, messages, answered, text)
    if spans is not None:
        return [_Text(text, spans, chat=True)]
    return [_render_turn(tokenizer, messages[: k + 1], record.where) for k in answered]


def _written_sample(written: WrittenSample) -> Sample:
    mask = torch.zeros(len(written.tokens), dtype=torch.bool)
    for start, end in written.learnt:
        mask[start:end] = True
    return Sample(torch.tensor(written.tokens, dtype=torch.int32), mask)


def _answered(messages: Sequence[Message]) -> list[int]:
    """Return the places of the assistant's answers."""
    return [k for k in range(1, len(messages)) if messages[k]["role"] == "assistant"]


def _assistant_spans(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], answered: list[int], text: str
) -> list[Span] | None:
    """Return where the assistant speaks in `text`; None if the template does not render turn by turn."""
    spans = []
    for k in answered:
        before = _render(tokenizer, messages[:k], add_generation_prompt=True)
        after = text if k + 1 == len(messages) else _render(tokenizer, messages[: k + 1])
        if not (after.startswith(before) and text.startswith(after)):
            return None
        spans.append((len(before), len(after)))
    return spans


def _render_turn(tokenizer: PreTrainedTokenizerBase, messages: list[Message], where: str) -> _Text:
    """Render a conversation of which the last message is learnt: from where it differs from the opening on."""
    text = _render(tokenizer, messages)
    opening = _render(tokenizer, messages[:-1], add_generation_prompt=True)
    start = next((i for i, (a, b) in enumerate(zip(opening, text, strict=False)) if a != b), len(opening))
    if start < len(opening) and not text.startswith(_render(tokenizer, messages[:-1])):
        raise TemplateRefused(
            f"{where}: the chat template {_describe_template(tokenizer)} renders the same turns differently before "
            "and after an answer, so the answer cannot be found"
        )
    return _Text(text, [(start, len(text))], chat=True)


def _parts(texts: Sequence[_Text]) -> Iterator[list[_Text]]:
    """Yield the texts in order, as many at a time as may be tokenized together."""
    part, size = list[_Text](), 0
    for text in texts:
        part.append(text)
        size += len(text.text)
        if size >= _TOGETHER:
            yield part
            part, size = [], 0
    if part:
        yield part


def _tokenize(
    texts: Sequence[_Text], tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int]
) -> list[Sample]:
    end: Any = tokenizer.eos_token_id
    stops: list[int] = [*([] if end is None else [end]), *eos_token_ids]
    samples = {i: text.sample for i, text in enumerate(texts) if text.sample is not None}
    for chat in (True, False):
        some = [i for i, text in enumerate(texts) if text.chat == chat and text.sample is None]
        batch = [texts[i].text for i in some]
        options: Any = {"add_special_tokens": not chat, "return_offsets_mapping": True, "verbose": False}
        encoded: Any = tokenizer(batch, **options) if some else {"input_ids": [], "offset_mapping": []}
        for i, tokens, offsets in zip(some, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            samples[i] = _sample(texts[i], tokens, offsets, stops)
    return [samples[i] for i in range(len(texts))]


def _sample(text: _Text, tokens: list[int], offsets: list[Span], stops: Sequence[int]) -> Sample:
    mask = np.full(len(tokens), text.spans is None)
    starts, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    for start, end in text.spans or ():
        # A token of spaces alone covers nothing where the tokenizer trims: it stands where its spaces end, or at 0.
        # What a tokenizer inserts stands at 0, too, but no span of a text with such tokens begins there.
        after, before = (ends > start) | (start == 0), (starts < end) | (ends == end)
        learnt = np.flatnonzero(after & before)
        if text.chat:  # what the template writes after the end of a turn is its own
            last_stop = max((i for i in learnt if tokens[i] in stops), default=len(tokens))
            learnt = learnt[learnt <= last_stop]
        mask[learnt] = True
    if not (text.chat or text.open) and stops and (not tokens or tokens[-1] not in stops):
        tokens, mask = [*tokens, stops[0]], np.append(mask, True)
    return Sample(torch.tensor(tokens, dtype=torch.int32), torch.from_numpy(mask))


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    name = tokenizer.name_or_path
    try:
        template: Any = tokenizer.get_chat_template() if tokenizer.chat_template else PLAIN_TEMPLATE
    except ValueError as error:
        raise UserError(f"the tokenizer {name} has no default chat template: {error}") from error
    if not isinstance(template, str):
        raise UserError(f"the chat template of the tokenizer {name} is no text: {str(template)[:80]}")
    return template


def _describe_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the name of the tokenizer that a chat template belongs to, and its first 80 characters."""
    start = " ".join(_template(tokenizer)[:80].split())
    kind = "" if tokenizer.chat_template else ", which has none, so the plain format is used"
    return f'of {tokenizer.name_or_path or type(tokenizer).__name__} ("{start}…"{kind})'


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], add_generation_prompt: bool = False
) -> str:
    template = _template(tokenizer)
    options: Any = {"tokenize": False, "add_generation_prompt": add_generation_prompt}
    try:
        text: Any = tokenizer.apply_chat_template(messages, chat_template=template, **options)
    except Exception as error:  # the template is a program of its own, which may raise anything
        raise TemplateRefused(
            f"the chat template {_describe_template(tokenizer)} refuses it: {one_line(error)}"
        ) from error
    return text
