"""The tokens of one text, released together with the text they wrote: for log-probabilities and to watch drafting."""

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
        text, offset: what it wrote, and how many characters of the text stand before that.
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
    """The part of a token's text that became certain in a step; `first` if no part of the token came before."""

    token: TextToken
    text: str
    first: bool


class TokenQueue:
    """Keeps the tokens of one text until their text is certain.

    Text is held back while it may be half a character or the beginning of a stop string. The tokens of a stop string
    are never released: to clients the tokens are the text.
    """

    def __init__(self) -> None:
        self._waiting = deque[TextToken]()
        self._written = self._released = 0  # characters

    def push(self, event: StepEvent) -> list[Part]:
        """Add the tokens of a step; return those whose text it made certain, the last perhaps in part."""
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
    """Return step `number` of a text as the stream describes it (`stream_options.include_speculation`)."""
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
