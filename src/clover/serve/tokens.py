"""Release the tokens of a text together with their characters, for log-probabilities and to show drafting."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from clover.engine import Drafted, StepEvent, TokenLogprobs
from clover.engine.text import token_name
from clover.serve.worker import TextStep


@dataclass
class TextToken:
    """A token of a text.

    Attributes:
        text, offset: its characters, and the number of characters before them.
        source, depth: "draft", "copied" or "target", and the token's depth in the step's tree; 0 for "target".
        logprobs: None if the request asked for none.
    """

    token: int
    text: str
    offset: int
    source: str
    depth: int
    logprobs: TokenLogprobs | None


class Part(NamedTuple):
    """The part of a token's text that became certain in a step; `first` is True for the token's first part."""

    token: TextToken
    text: str
    first: bool


class TokenQueue:
    """A queue of the tokens of one text whose characters are not certain yet.

    Characters are held back while they may be half a character or the beginning of a stop string. The tokens of a stop
    string are never released, so that the tokens agree with the text.
    """

    def __init__(self) -> None:
        self._waiting = deque[TextToken]()
        self._written = self._released = 0  # characters

    def push(self, event: StepEvent) -> list[Part]:
        """Add the tokens of a step, and return the tokens that are now certain; the last may be a part of one."""
        for at, (token, text) in enumerate(zip(event.tokens, event.pieces, strict=True)):
            source, depth = _source(event, at)
            logprobs = event.logprobs[at] if event.logprobs else None
            self._waiting.append(TextToken(token, text, self._written, source, depth, logprobs))
            self._written += len(text)
        before, self._released = self._released, self._released + len(event.text)
        whole = event.generation is not None and self._written <= self._released  # no stop string cut it
        parts = []
        while self._waiting and (whole or self._waiting[0].offset < self._released):
            token = self._waiting[0]
            start, end = max(before - token.offset, 0), self._released - token.offset
            if start == 0 or start < end:
                parts.append(Part(token, token.text[start:end], start == 0))
            if len(token.text) > end:
                break
            self._waiting.popleft()
        return parts


def describe_step(number: int, step: TextStep, parts: list[Part], tokenizer: Any) -> dict[str, Any]:
    """Return the stream's description of step `number` of a text (`stream_options.include_speculation`)."""
    drafted = step.event.drafted
    assert drafted is not None
    names = [token_name(tokenizer, token) for token in drafted.tokens]
    return {
        "step": number,
        "seconds": step.seconds,
        "drafted": len(drafted.tokens),
        "tree": {"parents": list(drafted.parents), "tokens": names},
        "accepted": list(drafted.path[: len(step.event.tokens)]),
        "tokens": [
            {"text": part.text, "source": part.token.source, "depth": part.token.depth} for part in parts
        ],
    }


def _source(event: StepEvent, at: int) -> tuple[str, int]:
    drafted: Drafted | None = event.drafted
    if drafted is None or at >= len(drafted.path):
        return "target", 0
    return ("copied" if drafted.copied else "draft"), at + 1
