"""Turn records into tokens with a loss mask, which marks the tokens that the draft learns to predict.

The chat template (`clover.templates`) renders conversations. Only what the assistant says is learnt, its end-of-turn
token included. To find it, a conversation is rendered twice up to each assistant turn: with the opening of the answer,
and with the answer. The difference is learnt. This holds only if the whole conversation begins with both renderings.
Some templates rewrite earlier turns (Qwen3's drops their thinking). Then each assistant turn becomes a sample, which
begins as the target's prompt does: with the rendering of the turns before and the opening of the answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from clover.data.formats import Message, Record, WrittenSample, message_text
from clover.errors import UserError
from clover.templates import (
    TemplateRefused,
    answer_start,
    encode_rendered,
    render,
    spare_bos,
    spare_eos,
    template_name,
)

FIRST_PREDICTED = 2  # a draft reads token 1 together with the state at token 0, and predicts token 2
_STAND_IN = "…"
_MAX_TURNS = 1000  # of a conversation, because the time to render it grows with the square of its turns
_THINKING = ("<think>", "</think>")
_THOUGHT = re.compile("think|thought|reason|analysis", re.IGNORECASE)  # in tags that open or close thinking
_TOGETHER = 2**20  # characters that are tokenized at a time; each token takes some hundred bytes meanwhile

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
        """Return only tokens `start` to `stop`."""
        return Sample(self.tokens[start:stop], self.loss_mask[start:stop])

    def digest(self) -> bytes:
        """Return a hash of tokens and mask."""
        content = self.tokens.to(torch.int32).numpy().tobytes() + self.loss_mask.numpy().tobytes()
        return hashlib.blake2b(content, digest_size=16).digest()


@dataclass(frozen=True)
class _Text:
    """A text to tokenize, and the spans of it that are learnt; None to learn all of it.

    A `chat` already has its special tokens. An `open` plain text is to be continued, so it gets no end-of-text token.
    A text of `clover write` already has its tokens, in `sample`.
    """

    text: str
    spans: list[Span] | None
    chat: bool = False
    open: bool = False
    sample: Sample | None = None


def encode_records(
    tokenizer: PreTrainedTokenizerBase,
    records: Iterable[Record],
    eos_token_ids: Sequence[int] = (),
    refused: Callable[[Record, UserError], None] | None = None,
    vocab_size: int | None = None,
) -> list[Sample]:
    """Tokenize records together, on all cores.

    A record gives one sample, or one per assistant turn if the template rewrites earlier turns. Plain text gets the
    tokenizer's own special tokens, and an end-of-text token if it does not end on one.

    Args:
        eos_token_ids: the tokens on which the target stops; the tokenizer's own end-of-text token always counts.
        refused: called with each record that is left out, and why. The chat template does not render it, the
            assistant's words are not in the rendering, it has too many turns, a token is not below `vocab_size`, or no
            token can be learnt. Without `refused`, UserError is raised, and a record may have no token to learn.

    Raises:
        UserError: the tokenizer cannot say which characters a token covers.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} cannot say which characters a token covers; take a fast one"
        )
    leave_out, texts, owners = refused or _refuse, list[_Text](), list[Record]()
    for record in records:
        try:
            rendered = _render_record(tokenizer, record)
        except UserError as error:
            leave_out(record, error)
            continue
        texts += rendered
        owners += [record] * len(rendered)
    samples = [sample for part in _parts(texts) for sample in _tokenize(tokenizer, part, eos_token_ids)]
    fit: list[Sample] = []
    for _, group in groupby(zip(owners, samples, strict=True), key=lambda one: id(one[0])):
        (record, *_), own = zip(*group, strict=True)
        try:
            if vocab_size is not None:
                check_tokens(own, vocab_size)
            if refused is not None:
                _check_learnt(tokenizer, record, own)
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


def _check_learnt(tokenizer: PreTrainedTokenizerBase, record: Record, samples: Sequence[Sample]) -> None:
    """Raise UserError if no token of a record's samples can be learnt; it says why."""
    if any(bool(sample.loss_mask[FIRST_PREDICTED:].any()) for sample in samples):
        return
    roles = list(dict.fromkeys(str(message["role"]) for message in record.messages))
    if any(bool(sample.loss_mask.any()) for sample in samples):
        why = "it is too short; the third token of a text is the first that a draft can learn"
    elif roles and "assistant" not in roles:
        why = f"its roles are {', '.join(roles)}; none is the assistant's"
    elif record.messages and not _answered(record.messages):
        why = "no answer has a weight above 0"
    elif record.messages:
        why = f"the chat template {template_name(tokenizer)} renders no token of the assistant"
    else:
        why = "it has a prompt and no completion" if record.prompt else "no token is marked to be learnt"
    raise UserError(f"it teaches nothing: {why}")


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Any] = ()
) -> list[int]:
    """Return the prompt to decode from: token ids of a conversation and of the opening of the next answer.

    TemplateRefused if the chat template does not render the conversation.
    """
    return encode_rendered(tokenizer, render(tokenizer, messages, tools, answer=True, plain=True))


def encode_user_opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids before a user's first words; UserError if no chat template says what they are."""
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer {tokenizer.name_or_path} has no chat template, so the target cannot write questions"
        )
    opening, found, _ = render(tokenizer, [{"role": "user", "content": _STAND_IN}]).partition(_STAND_IN)
    if not (opening and found):
        raise UserError(f"the chat template {template_name(tokenizer)} writes nothing before a user's words")
    return encode_rendered(tokenizer, opening)


@lru_cache(maxsize=4)
def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return 12 hexadecimal digits that stand for the tokens of a tokenizer and their ids."""
    tokens = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(tokens.encode(), digest_size=6).hexdigest()


def _render_record(tokenizer: PreTrainedTokenizerBase, record: Record) -> list[_Text]:
    if (written := record.written) is not None:
        if written.tokenizer in ("", vocabulary_hash(tokenizer)):
            return [_Text("", None, sample=_written_sample(one)) for one in written.samples]
        if written.cut:
            raise UserError("its last answer was cut off, and a model with another tokenizer wrote it")
    if not record.messages:
        text = record.prompt + record.completion
        spans = [(len(record.prompt), len(text))] if record.prompt else None
        return [_Text(text, spans, open=not record.completion)]
    messages = list(record.messages)
    if len(messages) > _MAX_TURNS:
        raise UserError(f"a conversation of {len(messages):,} turns; cut it to {_MAX_TURNS:,}")
    text, answered = render(tokenizer, messages, record.tools, plain=True), _answered(messages)
    spans = _assistant_spans(tokenizer, record, answered, text)
    if spans is not None:
        return [_Text(text, spans, chat=True)]
    return [_render_turn(tokenizer, messages[: k + 1], record.tools) for k in answered]


def _written_sample(written: WrittenSample) -> Sample:
    mask = torch.zeros(len(written.tokens), dtype=torch.bool)
    for start, end in written.learnt:
        mask[start:end] = True
    return Sample(torch.tensor(written.tokens, dtype=torch.int32), mask)


def _answered(messages: Sequence[Message]) -> list[int]:
    """Return the places of the assistant's answers that are learnt."""
    places = [k for k, one in enumerate(messages) if k and one["role"] == "assistant"]
    return [k for k in places if messages[k].get("weight") != 0]


def _assistant_spans(
    tokenizer: PreTrainedTokenizerBase, record: Record, answered: list[int], text: str
) -> list[Span] | None:
    """Return where the assistant speaks in `text`; None if the template does not render turn by turn."""
    spans, messages = [], record.messages
    for k in answered:
        before = render(tokenizer, messages[:k], record.tools, answer=True, plain=True)
        after = text
        if k + 1 < len(messages):
            after = render(tokenizer, messages[: k + 1], record.tools, plain=True)
        if not (after.startswith(before) and text.startswith(after)):
            return None
        learnt = after[len(before) :]
        shown = all(part in learnt for part in _parts_of_answer(messages[k]))
        if not shown or _thinks_twice(messages[k], learnt):
            return None
        spans.append((len(before), len(after)))
    return spans


def _render_turn(tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: Sequence[Any]) -> _Text:
    """Render a conversation whose last message is learnt, after the opening that the target sees in use."""
    text = render(tokenizer, messages, tools, plain=True)
    opening = render(tokenizer, messages[:-1], tools, answer=True, plain=True)
    start = len(opening)
    if not text.startswith(opening):
        start = _end_of_common(tokenizer, messages[:-1], tools, opening, text)
    if start < len(opening) and not text.startswith(render(tokenizer, messages[:-1], tools, plain=True)):
        raise TemplateRefused(
            f"the chat template {template_name(tokenizer)} renders the same turns differently before and after an "
            "answer, so the answer cannot be found"
        )
    whole = opening + _answer(tokenizer, messages[-1], opening, start, text[start:])
    return _Text(whole, [(len(opening), len(whole))], chat=True)


def _end_of_common(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[Message],
    tools: Sequence[Any],
    opening: str,
    text: str,
) -> int:
    """Return the length of the common beginning of `opening`, of an answer, and `text`, with the finished answer.

    Two different tags may begin with the same letters, such as <think> and </think>; these letters do not count.
    """
    begun = answer_start(tokenizer, messages, tools) or text
    end = next((i for i, (a, b, c) in enumerate(zip(opening, text, begun)) if not a == b == c), len(opening))  # noqa: B905
    end = min(end, len(begun))
    if end < min(len(opening), len(begun)) and ">" not in opening[(tag := opening.rfind("<", 0, end)) : end]:
        end = tag if tag >= 0 else end
    ways = opening[end:].strip(), begun[end:].strip()
    if begun != text and all(ways) and not any(_THOUGHT.search(way) for way in ways):
        raise TemplateRefused(
            f"the chat template {template_name(tokenizer)} opens an answer by {ways[0]!r}, "
            f"and shows one after {ways[1]!r}"
        )
    return end


def _answer(
    tokenizer: PreTrainedTokenizerBase, message: Message, opening: str, start: int, shown: str
) -> str:
    """Return the text that the target itself writes for a message.

    Args:
        message: the assistant's message.
        opening: the opening of the answer, as the target sees it in use.
        start: where `opening` differs from a finished answer; for example, "<think>" and a line break may follow.
        shown: the rendering of the message. A template may leave out its thinking; the target writes the thinking all
            the same, unless the opening has closed it.
    """
    *thinking, words = _parts_of_answer(message)
    if _thinks_twice(message, shown):
        raise TemplateRefused(
            f"the chat template {template_name(tokenizer)} puts thinking of its own before that in the "
            "answer; give the thinking as reasoning_content"
        )
    if words not in shown:
        raise TemplateRefused(f"the chat template {template_name(tokenizer)} changes the words of an answer")
    opened = opening[start:]
    if all(part in shown for part in thinking) and not (thinking and opened.strip()):
        return shown
    content = message_text(message)
    if not thinking or opening.rstrip().endswith(_THINKING[1]):
        return shown
    if _THINKING[1] not in content:
        raise TemplateRefused(f"the chat template {template_name(tokenizer)} does not show the thinking")
    if opened.strip() and content.lstrip().startswith(opened.strip()):
        content = content.lstrip()[len(opened.strip()) :]
        content = content.removeprefix("\n") if opened.endswith("\n") else content
    return content.rstrip() + shown[shown.rindex(words) + len(words) :]


def _thinks_twice(message: Message, shown: str) -> bool:
    """Return True if the template shows thinking besides that within the answer's content."""
    closing = _THINKING[1]
    return 0 < message_text(message).count(closing) < shown.count(closing)


def _parts_of_answer(message: Message) -> list[str]:
    """Return the texts that an answer must show: its thinking, if it has any, and then its words."""
    (opening, closing), content = _THINKING, message["content"]
    *before, last = [content] if isinstance(content, str) else [part["text"] for part in content]
    thinking, _, words = last.rpartition(closing)
    separate = [message.get(name) for name in ("reasoning_content", "reasoning", "thinking")]
    found = [*before, thinking.replace(opening, ""), *separate]
    return [*(part.strip() for part in found if isinstance(part, str) and part.strip()), words.strip()]


def _parts(texts: Sequence[_Text]) -> Iterator[list[_Text]]:
    """Yield the texts in order, in parts that may be tokenized together."""
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
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[_Text], eos_token_ids: Sequence[int]
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
            start = 0 if chat else spare_bos(tokenizer, tokens)
            stop = len(tokens) - spare_eos(tokenizer, texts[i].text, tokens)  # `_sample` adds a learnt one
            samples[i] = _sample(texts[i], tokens[start:stop], offsets[start:stop], stops)
    return [samples[i] for i in range(len(texts))]


def _sample(text: _Text, tokens: list[int], offsets: list[Span], stops: Sequence[int]) -> Sample:
    mask = np.full(len(tokens), text.spans is None)
    starts, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    for start, end in text.spans or ():
        # If the tokenizer trims, a token of only spaces covers no characters: its place is the end of the spaces, or
        # 0. Tokens that the tokenizer inserts are at 0, too, but no span of a text with such tokens begins there.
        after, before = (ends > start) | (start == 0), (starts < end) | (ends == end)
        learnt = np.flatnonzero(after & before)
        if text.chat:  # the template, not the target, writes what follows the end of a turn
            last_stop = max((i for i in learnt if tokens[i] in stops), default=len(tokens))
            learnt = learnt[learnt <= last_stop]
        mask[learnt] = True
    if not (text.chat or text.open) and stops and (not tokens or tokens[-1] not in stops):
        tokens, mask = [*tokens, stops[0]], np.append(mask, True)
    return Sample(torch.tensor(tokens, dtype=torch.int32), torch.from_numpy(mask))
