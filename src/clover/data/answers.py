"""Let texts grow answer by answer: build the prompt of each answer, and the finished record.

A text is a coroutine: it yields a request, is sent the tokens of the answer, and returns the finished text. So this
module holds the rules of conversations without any model, and the code that runs the requests need not know them.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from transformers import PreTrainedTokenizerBase

from clover.data.chat import encode_records, encode_user_opening
from clover.data.formats import Message, Record, WrittenSample
from clover.errors import UserError
from clover.templates import encode_rendered, render

_LONGEST_PROMPT = 128  # tokens of a prompt that the target writes; a longer text is mostly no question


@dataclass(frozen=True)
class Ask:
    """A request: the tokens to continue, how many may follow, and a temperature that overrides the run's."""

    tokens: list[int]
    max_new_tokens: int
    temperature: float | None = None


@dataclass
class _GrowingSample:
    """The tokens of a growing text, and the spans of those that the target wrote."""

    tokens: list[int] = field(default_factory=list)
    learnt: list[tuple[int, int]] = field(default_factory=list)

    def add(self, tokens: list[int], written: bool) -> None:
        """Append tokens, which are learnt if the target has written them."""
        if written:
            self.learnt.append((len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens += tokens

    @property
    def whole(self) -> WrittenSample:
        """Return the sample as it is written into a file."""
        return WrittenSample(self.tokens, self.learnt)


@dataclass(frozen=True)
class Ended:
    """A finished text.

    Args:
        fields: the fields of its record, as `clover.data.formats` reads them.
        samples: its tokens.
        cut: whether the last answer was cut off.
        missing: the number of later answers that were not written, because the text ended before.
    """

    fields: dict[str, Any]
    samples: list[WrittenSample]
    cut: bool
    missing: int = 0


# The coroutine raises UserError if the text has to be left out. It is sent [] if writing stops before the answer's
# first token.
GrowingText = Generator[Ask, list[int], Ended]


@dataclass(frozen=True)
class Growth:
    """The rules by which the texts of one target grow.

    Args:
        eos_token_ids: tokens that end an answer.
        vocab_size: number of tokens that the target knows.
        max_length: most tokens of a text, its prompt included.
        max_new_tokens: most tokens of an answer; None for no limit but `max_length`.
        prompt_tokens: tokens of a plain text, or of each window of `max_length` tokens, that are kept as its opening;
            at most half of it.
    """

    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: Sequence[int]
    vocab_size: int
    max_length: int
    max_new_tokens: int | None
    prompt_tokens: int

    def texts(self, record: Record) -> Iterator[GrowingText]:
        """Yield the texts of a record: one, or one for each window of a long plain text."""
        if record.messages:
            yield self._chat(record)
            return
        (sample,) = encode_records(self.tokenizer, [record], self.eos_token_ids)
        tokens, size = sample.tokens.tolist(), self.max_length
        if record.prompt:
            yield self._plain(record.where, tokens[: int((~sample.loss_mask).sum())], record.prompt)
            return
        for start in range(0, len(tokens), size):
            window = tokens[start : start + size]
            if not start or len(window) >= self.prompt_tokens:
                opening = window[: max(1, min(self.prompt_tokens, len(window) // 2))]
                yield self._plain(record.where, opening, self._decode(opening, skip_special_tokens=True))

    def _ask(self, where: str, tokens: list[int], temperature: float | None = None) -> Ask:
        """Make a request; UserError if nothing comes before the answer, or there is no room for it."""
        if not tokens:
            raise UserError(f"{where}: nothing comes before the answer")
        if len(tokens) + 1 >= self.max_length:
            raise UserError(
                f"{where}: {len(tokens):,} tokens before the answer; at most {self.max_length - 2:,} fit"
            )
        if max(tokens) >= self.vocab_size:
            raise UserError(f"{where}: token {max(tokens)} is not one of the target's {self.vocab_size:,}")
        room = self.max_length - len(tokens)
        return Ask(tokens, min(room, self.max_new_tokens or room), temperature)

    def _plain(self, where: str, opening: list[int], prompt: str) -> GrowingText:
        """Continue the tokens `opening`, whose text is `prompt`."""
        sample = _GrowingSample()
        answer = yield self._ask(where, opening)
        if not answer:
            raise UserError(f"{where}: nothing was written")
        sample.add(opening, written=False)
        sample.add(answer, written=True)
        fields = {"prompt": prompt, "completion": self._words(answer)}
        return Ended(fields, [sample.whole], cut=not self._has_ended(answer))

    def _chat(self, record: Record) -> GrowingText:
        """Answer a conversation, answer by answer.

        If the rendering of the prompt extends the text so far, the rest of it is appended to the same sample. If the
        template rewrites earlier turns, the answer begins a new sample.
        A conversation ends before the first answer that does not fit or is empty, and after one that was cut off. It
        also ends before a tool's result, because the target has replaced the call that it belongs to.
        """
        messages, samples, so_far, cut = list[Message](), list[_GrowingSample](), "", False
        refusal, turns = "there is nothing that the assistant could answer", [*_with_places(record.messages)]
        for message in turns:
            if message is not None and message["role"] == "tool" and samples:
                break
            if message is not None:
                messages.append(message)
                continue
            try:
                rendered = render(self.tokenizer, messages, record.tools, answer=True, plain=True)
                appended = bool(samples) and rendered.startswith(so_far)
                sample = samples[-1] if appended else _GrowingSample()
                more = encode_rendered(self.tokenizer, rendered[len(so_far) if appended else 0 :])
                ask = self._ask(record.where, [*sample.tokens, *more])
            except UserError:
                if samples:
                    break
                raise
            answer = yield ask
            if not answer:  # the time was up before its first token
                refusal = "nothing was written"
                break
            sample.add(more, written=False)
            sample.add(answer, written=True)
            samples += [] if appended else [sample]
            messages.append({"role": "assistant", "content": self._words(answer)})
            so_far, cut = rendered + self._decode(answer), not self._has_ended(answer)
            if cut:
                break
        if not samples:
            raise UserError(f"{record.where}: {refusal}")
        last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
        fields = {"messages": messages[: last + 1]} | ({"tools": record.tools} if record.tools else {})
        missing = turns.count(None) - sum(len(one.learnt) for one in samples)
        return Ended(fields, [one.whole for one in samples], cut, missing)

    def with_prompt(self, number: int, seen: set[str]) -> GrowingText:
        """Let the target write a user's turn at temperature 1, and answer it. The turn is added to `seen`.

        UserError if no chat template says how a user's turn opens.
        """
        where = f"prompt {number} of the target"
        ask = self._ask(where, encode_user_opening(self.tokenizer), temperature=1.0)
        turn = yield replace(ask, max_new_tokens=min(ask.max_new_tokens, _LONGEST_PROMPT))
        prompt = self._words(turn).strip()
        if not self._has_ended(turn) or not prompt or prompt in seen:
            raise UserError(f"{where}: empty, too long, or written before")
        seen.add(prompt)
        return (yield from self._chat(Record(where, messages=({"role": "user", "content": prompt},))))

    def _has_ended(self, answer: list[int]) -> bool:
        return bool(answer) and answer[-1] in self.eos_token_ids

    def _words(self, answer: list[int]) -> str:
        """Return an answer as text, without the token that ends it."""
        return self._decode(answer[:-1] if self._has_ended(answer) else answer)

    def _decode(self, tokens: list[int], **options: bool) -> str:
        return str(self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False, **options))


def _with_places(messages: Sequence[Message]) -> Iterator[Message | None]:
    """Yield the turns of a conversation, and None in the place of each answer that is to be written.

    It is written where the assistant speaks after others, and after each turn of the user that nobody answers.
    """
    for number, (message, after) in enumerate(zip_longest(messages, messages[1:])):
        if message["role"] == "assistant" and number:
            yield None
            continue
        yield message
        if message["role"] == "user" and (after is None or after["role"] == "user"):
            yield None
