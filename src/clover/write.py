"""Let the target write training text, because a draft should learn the model's own text, not that of a data set.

In a conversation every answer is written anew, one request per answer, each after the turns and the new answers before
it. In a plain text the opening is kept, and the target continues it. Without data a chat model also writes the prompts:
given the opening of a user's turn, it writes a user's question (Magpie: Xu and others, 2406.08464).

Each finished text is one line of a JSON-lines file, as text and as tokens. The file is the only state: a stopped run
continues with the missing texts.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from clover.data.answers import Ended, GrowingText, Growth
from clover.data.chat import encode_user_opening, vocabulary_hash
from clover.data.formats import Message, Record, Written
from clover.engine import Engine, PrefixStore, Request
from clover.errors import UserError
from clover.files import append_lines
from clover.sampling import SamplingParams
from clover.target import TargetWeights, weights_fingerprint
from clover.validation import read_lines

_MAX_BYTES = 2**33
_TRIES = 4  # the most attempts per text if the target writes the prompts
_JOINING = 4  # the most texts that begin between two steps
_KEPT_BYTES = 2**30  # the most memory for finished answers, whose beginnings later prompts share
_USUAL_TOKENS, _ALMOST = 256, 0.9  # the assumed length of the first text; the most that a running one counts
_NOTHING = (
    "the target wrote nothing: no text fits, or none is left to write; check the chat template, the data, --max-length "
    "and the time"
)


@dataclass(frozen=True)
class WriteConfig:
    """The settings of writing.

    Args:
        max_length: the most tokens of a text, prompt included.
        max_new_tokens: the most tokens of an answer; None for no limit other than `max_length`.
        prompt_tokens: tokens of a plain text, or of each `max_length` tokens of it, that are kept as its opening; at
            most half of the text.
        temperatures: text i is written at `temperatures[i % len]`, because a draft needs greedy and sampled text.
        batch_size: texts that are written together.
        max_minutes: all texts end after this time, with interrupted runs included; None for no limit.
        seed: the seed of the sampling.
    """

    max_length: int = 512
    max_new_tokens: int | None = None
    prompt_tokens: int = 32
    temperatures: tuple[float, ...] = (0.0, 1.0)
    batch_size: int = 32
    max_minutes: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Facts:
    """The field `clover` of a line: facts about its text.

    Args:
        index: the number of the text among all texts for the file.
        writer: a hash of everything that determines the texts, see `writer_hash`.
        tokens: number of tokens that the target wrote.
        seconds: time of writing up to this line, interrupted runs included.
        missing: answers that were not written, because the conversation ended before.
    """

    index: Annotated[int, Field(ge=0)]
    writer: str
    tokens: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    missing: Annotated[int, Field(ge=0)] = field(default=0, kw_only=True)


@dataclass(frozen=True)
class _Written(Written, Facts):
    """The whole field: the facts for continuing the file, and those for training."""


@dataclass(frozen=True)
class _Line:
    """The part of a line that is read to continue its file."""

    clover: Facts


@dataclass(frozen=True)
class _Turns:
    messages: list[Message]


@dataclass
class _Running:
    """A text that is being written, and the tokens of its current answer."""

    index: int
    text: GrowingText
    turn: int = 0
    answer: list[int] = field(default_factory=list)


def writer_hash(target: TargetWeights, fingerprint: str, config: WriteConfig) -> str:
    """Return a hash, 12 hexadecimal digits, of everything that determines the texts.

    Args:
        target: the model that writes.
        fingerprint: the fingerprint of the prompts.
        config: the settings; only those that change an answer count.
    """
    options = (
        config.max_length,
        config.prompt_tokens,
        config.temperatures,
        config.seed,
        config.max_new_tokens,
    )
    parts = [weights_fingerprint(target), target.eos_token_ids, options, fingerprint]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=6).hexdigest()


class Writer:
    """Writes texts into one file and continues it; UserError if another target, prompts or settings began the file.

    Attributes:
        left_out: the reasons why texts could not be written, by the names of the texts; each run tries them again.
        missing: answers of the texts in the file that were not written, because their conversations ended before.
        tokens: tokens that the target wrote into the file.
        begun: the running texts in units of whole texts, by the usual length of finished texts.
        seconds: time of writing, interrupted runs included.
    """

    def __init__(self, target: TargetWeights, config: WriteConfig, path: Path, fingerprint: str = ""):
        self.target, self.config, self.path = target, config, path
        self.left_out, self.begun = dict[str, str](), 0.0
        self._tokenizer = target.require_tokenizer()
        known, longest = (target.eos_token_ids, target.vocab_size), min(config.max_length, target.longest_run)
        self._growth = Growth(self._tokenizer, *known, longest, config.max_new_tokens, config.prompt_tokens)
        self._writer = writer_hash(target, fingerprint, config)
        lines = read_lines(path, _Line, _MAX_BYTES, mend=True) if path.exists() else []
        if any(line.clover.writer != self._writer for line in lines):
            raise UserError(
                f"{path} holds texts of another target, other prompts or other options; choose another file"
            )
        self._done = {line.clover.index for line in lines}
        self.tokens = sum(line.clover.tokens for line in lines)
        self.missing = sum(line.clover.missing for line in lines)
        # The lines need not be in chronological order.
        self.seconds = max((line.clover.seconds for line in lines), default=0.0)

    @property
    def texts(self) -> int:
        """Return the number of texts in the file."""
        return len(self._done)

    def write(
        self,
        records: Iterable[Record],
        progress: Callable[[int, int], None] = lambda texts, tokens: None,
    ) -> int:
        """Write a text for each record, several for a long plain text; return the number of tokens in the file.

        Args:
            records: prompts; their answers are written anew.
            progress: called with the written (texts, tokens), at the beginning and after each step.

        Raises:
            UserError: the file cannot be written, or the target has written nothing at all.
        """
        texts = enumerate(text for record in records for text in self._growth.texts(record))
        return self._run(texts, math.inf, progress)

    def write_with_prompts(
        self, number: int, progress: Callable[[int, int], None] = lambda texts, tokens: None
    ) -> int:
        """Let the target write `number` different prompts and its answers; fewer if it finds no more prompts.

        See `write`; UserError also if the target has no chat template that opens a user's turn.
        """
        encode_user_opening(self._tokenizer)  # raises for a target that cannot write questions
        seen = set[str]()
        if self._done:
            lines = read_lines(self.path, _Turns, _MAX_BYTES)
            seen = {str(line.messages[0]["content"]) for line in lines}
        texts = ((index, self._growth.with_prompt(index + 1, seen)) for index in range(_TRIES * number))
        return self._run(texts, number, progress)

    def _run(
        self, texts: Iterator[tuple[int, GrowingText]], most: float, progress: Callable[[int, int], None]
    ) -> int:
        """Keep the batch full: the next text starts as soon as another one has ended.

        When the time is up, running texts are written unfinished, because dropping them would drop the long texts.
        """
        began, before = time.monotonic(), self.seconds
        limit = math.inf if self.config.max_minutes is None else 60 * self.config.max_minutes
        size, running = self.config.batch_size, dict[int, _Running]()
        decoding = Engine(self.target).open(size, store=PrefixStore(_KEPT_BYTES, size))
        progress(len(self._done), self.tokens)
        while self.seconds < limit:
            # Few texts join at a time, because the prompts of all would delay the first token by a minute.
            room = min(size, most - len(self._done), len(running) + _JOINING)
            while len(running) < room and (text := self._next(texts)) is not None:
                if (request := self._continue(text)) is not None:
                    running[decoding.add(request)] = text
                room = min(room, most - len(self._done))
            if not running:
                break
            for event in decoding.step():
                text = running[event.index]
                text.answer += event.tokens
                if event.generation is not None:
                    del running[event.index]
                    if (request := self._continue(text)) is not None:
                        running[decoding.add(request)] = text
            self.seconds = before + time.monotonic() - began
            usual = self.tokens / len(self._done) if self.tokens else _USUAL_TOKENS
            self.begun = sum(min(len(one.answer) / usual, _ALMOST) for one in running.values())
            progress(len(self._done), self.tokens + sum(len(one.answer) for one in running.values()))
        for text in running.values():
            self._continue(text)
        if not self._done:
            raise UserError(_NOTHING)
        return self.tokens

    def _next(self, texts: Iterator[tuple[int, GrowingText]]) -> _Running | None:
        """Return the next text that is missing in the file; None if there is none."""
        return next((_Running(index, text) for index, text in texts if index not in self._done), None)

    def _continue(self, text: _Running) -> Request | None:
        """Give a text the answer to its last request; return the next request, or None if the text has ended."""
        answer, text.answer = text.answer, []
        try:
            ask = text.text.send(answer if text.turn else None)  # type: ignore[arg-type]
        except StopIteration as stop:
            self._append(text.index, stop.value)
            return None
        except UserError as error:
            self.left_out[f"text {text.index + 1}"] = str(error)
            return None
        temperature, seed = ask.temperature, self.config.seed + 64 * text.index + text.turn
        if temperature is None:
            temperature = self.config.temperatures[text.index % len(self.config.temperatures)]
        text.turn += 1
        sampling = SamplingParams(temperature=temperature, seed=seed)
        return Request(tuple(ask.tokens), ask.max_new_tokens, sampling, keep=True)

    def _append(self, index: int, ended: Ended) -> None:
        """Write the line of a text; it is on the disk when this returns."""
        tokens = sum(end - start for one in ended.samples for start, end in one.learnt)
        facts = (index, self._writer, tokens, round(self.seconds, 3), vocabulary_hash(self._tokenizer))
        written = _Written(*facts, ended.cut, tuple(ended.samples), missing=ended.missing)
        append_lines(self.path, [ended.fields | {"clover": written}])
        self._done.add(index)
        self.missing += ended.missing
        self.tokens += tokens
