"""Where each piece of a streamed text came from, for those who want to watch (`stream_options.include_speculation`)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from clover.engine import Drafted, Request
from clover.engine.text import Detokenizer, token_name
from clover.serve.worker import TextStep


@dataclass
class _TokenText:
    """The part of one token's text that was not returned yet."""

    text: str
    source: str
    depth: int


class Speculation:
    """Describes, step by step, what was drafted for one text, what of it was accepted, and which token wrote what.

    Text that is held back (half a character, the beginning of a stop string) comes with a later step, with its tokens.
    """

    def __init__(self, tokenizer: Any, request: Request):
        self._tokenizer = tokenizer
        self._text = Detokenizer(tokenizer, request.stop, request.prompt)
        self._held: deque[_TokenText] = deque()
        self._steps = 0

    def push(self, step: TextStep) -> tuple[str, dict[str, Any]]:
        """Return the text that became certain with a step, and the step as the stream describes it."""
        event, drafted = step.event, step.event.drafted
        assert drafted is not None
        self._steps += 1
        released = ""
        for at, token in enumerate(event.tokens):
            source = ("copied" if drafted.copied else "draft") if at < len(drafted.path) else "target"
            released += self._push_token(token, source, at + 1 if source != "target" else 0)
        if event.generation is not None:
            before = len(self._text.text)
            released += self._text.finish()
            self._held[-1].text += self._text.text[before:]
        told = {
            "step": self._steps,
            "seconds": step.seconds,
            "drafted": len(drafted.tokens),
            "tree": self._tree(drafted),
            "accepted": list(drafted.path[: len(event.tokens)]),
            "tokens": [vars(piece) for piece in self._release(len(released))],
        }
        return released, told

    def _push_token(self, token: int, source: str, depth: int) -> str:
        before = len(self._text.text)
        released = self._text.push(token)
        self._held.append(_TokenText(self._text.text[before:], source, depth))
        return released

    def _release(self, count: int) -> list[_TokenText]:
        """Return the pieces of the next `count` characters; the last may be a part of one."""
        out = []
        while self._held and len(self._held[0].text) <= count:
            out.append(self._held.popleft())
            count -= len(out[-1].text)
        if count:
            first = self._held[0]
            out.append(_TokenText(first.text[:count], first.source, first.depth))
            first.text = first.text[count:]
        return out

    def _tree(self, drafted: Drafted) -> dict[str, Any]:
        texts = [token_name(self._tokenizer, token) for token in drafted.tokens]
        return {"parents": list(drafted.parents), "tokens": texts}
