"""Let the target write the training text itself: a draft learns the model, not the data set.

Of a conversation every answer is written anew, each after the turns before it (with the new answers in them). Where
the chat template rewrites earlier turns, each turn is a text of its own, which is rendered once the answers before it
are there. Of a plain text the opening is kept and the target continues it; a long one is cut into several.
"""

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from clover.data import Sample, TurnSample
from clover.data.chat import TemplateRefused, with_answers
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.files import append_lines, write_json
from clover.sampling import SamplingParams
from clover.target import TargetWeights, weights_fingerprint
from clover.validation import read_lines, read_model

_MAX_BYTES = 2**33
_SECONDS = ".seconds.json"  # ends the name of the file that says how long the written texts took
_NO_TIME = "no text is written yet, and --regenerate-minutes leaves no time to write; give more"
_NOTHING = (
    "the target wrote nothing: every text ended at once, or none fits; check its chat template, the data, "
    "--max-length and --regenerate-minutes"
)


@dataclass(frozen=True)
class RegenerateConfig:
    """How texts are written anew.

    Args:
        max_length: tokens of a text at most, its prompt included.
        prompt_tokens: tokens of a plain text, or of each `max_length` tokens of it, that are kept as its opening, at
            most half of it.
        temperatures: text i is written at `temperatures[i % len]`: a draft should meet greedy and sampled text.
        batch_size: texts that are written together.
        max_minutes: end all texts after this time, interrupted runs included; None to write them all.
        seed: of the sampling.
    """

    max_length: int = 512
    prompt_tokens: int = 32
    temperatures: tuple[float, ...] = (0.0, 1.0)
    batch_size: int = 32
    max_minutes: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class _Written:
    """A line of the file: a finished text and its place among the texts."""

    index: Annotated[int, Field(ge=0)]
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]
    loss_mask: list[Annotated[int, Field(ge=0, le=1)]]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.loss_mask):
            raise ValueError("tokens and loss_mask differ in length")

    @property
    def sample(self) -> Sample:
        mask = torch.tensor(self.loss_mask, dtype=torch.bool)
        return Sample(torch.tensor(self.tokens, dtype=torch.int32), mask)


@dataclass(frozen=True)
class _Spent:
    """The file beside the texts: the time that they took, interrupted runs included."""

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass
class _Text:
    """A text that is being written: what it holds so far, and what stands before each answer that is to come.

    `later` are the turns of its conversation that are texts of their own, `answers` those before this one.
    """

    index: int
    parts: deque[list[int]]
    later: Sequence[TurnSample] = ()
    answers: tuple[str, ...] = ()
    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    turn: int = 0

    def ask(self, config: RegenerateConfig, limit: int) -> Request | None:
        """Take in the next turn and ask for its answer.

        A text ends before the first turn that does not fit: what comes later would answer what is not there. There is
        nothing to answer where nothing comes before.
        """
        if not self.parts or len(self.tokens) + len(self.parts[0]) + 1 >= limit:
            return None
        given = self.parts.popleft()
        if not (self.tokens or given):
            return None
        self._add(given, 0)
        seed = config.seed + 64 * self.index + self.turn
        self.turn += 1
        temperature = config.temperatures[self.index % len(config.temperatures)]
        params = SamplingParams(temperature=temperature, seed=seed)
        return Request(tuple(self.tokens), limit - len(self.tokens), params)

    def answer(self, tokens: Sequence[int]) -> None:
        """Add tokens that the target has written."""
        self._add(tokens, 1)

    def _add(self, tokens: Sequence[int], learnt: int) -> None:
        self.tokens += tokens
        self.loss_mask += [learnt] * len(tokens)


def written_name(target: TargetWeights, fingerprint: str, config: RegenerateConfig) -> str:
    """A hash of all that decides what is written: the target, the texts, and the options that change an answer.

    Args:
        fingerprint: of the texts.

    Returns:
        12 hexadecimal digits.
    """
    options = (config.max_length, config.prompt_tokens, config.temperatures, config.seed)
    parts = [weights_fingerprint(target), target.eos_token_ids, options, fingerprint]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=6).hexdigest()


def regenerate(
    target: TargetWeights,
    samples: Iterable[Sample],
    config: RegenerateConfig,
    path: Path,
    progress: Callable[[int, int], None] = lambda texts, tokens: None,
) -> list[Sample]:
    """Write all texts anew into the JSON-lines file `path`; goes on from what the file holds.

    A text that has ended makes room for the next one at once, so the batch stays full. When the time is up, what is
    written of the others is kept as it is: to leave them out would leave out the long ones.

    Args:
        progress: called with (conversations and plain texts, tokens) written so far, at first and after each step.

    Returns:
        the written texts, in the order of `samples`.

    Raises:
        UserError: the file cannot be written or is not of this kind, or the target writes nothing at all, or has no
            time to.
    """
    done = _read(path, mend=True) if path.exists() else {}
    tokens = sum(int(text.loss_mask.sum()) for text in done.values())
    before, started = written_seconds(path), time.monotonic()
    if config.max_minutes is not None:
        config = replace(config, max_minutes=max(config.max_minutes - before / 60, 0.0))
    queue = _Queue(target, samples, config, done)
    try:
        for ended, written in _write(target, queue, config):
            if ended:
                lines = [_Written(text.index, text.tokens, text.loss_mask) for text in ended]
                append_lines(path, lines)
                done |= {line.index: line.sample for line in lines}
                _note_seconds(path, before + time.monotonic() - started)
            tokens += written
            progress(queue.opened * min(len(done), queue.texts) // max(queue.texts, 1), tokens)
    finally:
        if path.exists():
            _note_seconds(path, before + time.monotonic() - started)
    if not tokens:
        raise UserError(_NOTHING if config.max_minutes != 0 else _NO_TIME)
    return _in_order(done)


class _Queue:
    """The texts that are still to be written.

    Attributes:
        opened: how many conversations and plain texts have been opened.
        texts: how many texts these are.
    """

    def __init__(
        self,
        target: TargetWeights,
        samples: Iterable[Sample],
        config: RegenerateConfig,
        done: Mapping[int, Sample],
    ):
        self._target, self._config, self._done = target, config, done
        self._groups = _groups(samples, config)
        self.opened = self.texts = 0

    def take(self) -> _Text | None:
        """The next one that is not done; None if there is none."""
        for number, first, later in self._groups:
            text: _Text | None = _Text(self.texts, self._parts(first), later)
            self.opened, self.texts = number, self.texts + 1 + len(later)
            while text is not None and (written := self._done.get(text.index)) is not None:
                text = self.after(text, written.tokens.tolist(), written.loss_mask.tolist())
            if text is not None:
                return text
        return None

    def after(self, text: _Text, tokens: Sequence[int], loss_mask: Sequence[int]) -> _Text | None:
        """The next turn of the conversation, after what was written of `text`.

        None if there is none, or the answer was cut off, or the template does not take it.
        """
        target = self._target
        answer = [token for token, learnt in zip(tokens, loss_mask, strict=True) if learnt]
        if not (text.later and answer) or answer[-1] not in target.eos_token_ids:
            return None
        tokenizer = target.require_tokenizer()
        words: Any = tokenizer.decode(answer[:-1], clean_up_tokenization_spaces=False)
        answers = (*text.answers, words)
        try:
            sample = with_answers(text.later[0], answers, tokenizer, target.eos_token_ids)
        except TemplateRefused:
            return None
        return _Text(text.index + 1, self._parts(sample), text.later[1:], answers)

    def _parts(self, sample: Sample) -> deque[list[int]]:
        return deque(_parts(sample, self._config.prompt_tokens))


def _write(
    target: TargetWeights, queue: _Queue, config: RegenerateConfig
) -> Iterator[tuple[list[_Text], int]]:
    """Yield at first and after each step the texts that have ended, and how many tokens it has written.

    At most `batch_size` texts are written at a time.
    """
    limit = min(config.max_length, target.longest_run)
    deadline = time.monotonic() + 60 * (math.inf if config.max_minutes is None else config.max_minutes)
    decoding = Engine(target).open(config.batch_size)
    running: dict[int, _Text] = {}
    ended, written = list[_Text](), 0
    while time.monotonic() < deadline:
        while len(running) < config.batch_size and (text := queue.take()) is not None:
            if (request := text.ask(config, limit)) is not None:
                running[decoding.add(request)] = text
        yield ended, written
        if not running:
            return
        ended, written = [], 0
        for event in decoding.step():
            text = running[event.index]
            text.answer(event.tokens)
            written += len(event.tokens)
            if event.generation is None:
                continue
            del running[event.index]
            request = text.ask(config, limit)
            if request is None:
                ended.append(text)
                text = queue.after(text, text.tokens, text.loss_mask)
                request = None if text is None else text.ask(config, limit)
            if text is not None and request is not None:
                running[decoding.add(request)] = text
    yield [*ended, *running.values()], written


def _groups(
    samples: Iterable[Sample], config: RegenerateConfig
) -> Iterator[tuple[int, Sample, list[TurnSample]]]:
    """The number, from 1, of a conversation or plain text, a text of it to be written, and those that follow it."""
    number = 0

    def conversation(sample: Sample) -> int:
        nonlocal number
        number += not (isinstance(sample, TurnSample) and sample.number)
        return number

    for place, group in groupby(samples, conversation):
        first, *later = group
        for window in _windows(first, config):
            yield place, window, [turn for turn in later if isinstance(turn, TurnSample)]


def _windows(sample: Sample, config: RegenerateConfig) -> Iterator[Sample]:
    """The parts of a long plain text, of which each opening is kept; what is no plain text is left whole."""
    whole = sample.size <= config.max_length or not bool(sample.loss_mask.all())
    for start in range(0, 1 if whole else sample.size, config.max_length):
        window = sample if whole else sample.part(start, start + config.max_length)
        if not start or window.size >= config.prompt_tokens:
            yield window


def _note_seconds(path: Path, seconds: float) -> None:
    write_json(path.with_suffix(_SECONDS), asdict(_Spent(seconds)))


def written_seconds(path: Path) -> float:
    """Time that was spent on writing the texts in `path`, as far as it was noted beside them.

    Raises:
        UserError: the note cannot be read or is none of a time.
    """
    noted = path.with_suffix(_SECONDS)
    return read_model(noted, _Spent).seconds if path.exists() and noted.exists() else 0.0


def read_regenerated(path: Path) -> list[Sample]:
    """Samples of a file that `regenerate` wrote, each text once, in order; a half-written last line is left out.

    Raises:
        UserError: the file cannot be read or is not of this kind.
    """
    return _in_order(_read(path))


def _read(path: Path, mend: bool = False) -> dict[int, Sample]:
    """The texts by number, as tensors: lists of numbers take five times as much memory."""
    return {line.index: line.sample for line in read_lines(path, _Written, _MAX_BYTES, mend)}


def _in_order(texts: Mapping[int, Sample]) -> list[Sample]:
    return [texts[index] for index in sorted(texts)]


def _parts(sample: Sample, prompt_tokens: int) -> list[list[int]]:
    """What stands before each answer: the opening of a plain text, or what comes between the answers of a chat."""
    tokens, mask = sample.tokens.tolist(), sample.loss_mask.tolist()
    if all(mask):
        return [tokens[: max(1, min(prompt_tokens, len(tokens) // 2))]]
    parts: list[list[int]] = []
    given: list[int] = []
    for at, (token, learnt) in enumerate(zip(tokens, mask, strict=True)):
        if not learnt:
            given.append(token)
        elif at == 0 or not mask[at - 1]:
            parts.append(given)
            given = []
    return parts
