"""One running request: its tokens so far, its text, and when it ends."""

from __future__ import annotations

import time
from typing import Any

from clover.engine.requests import FinishReason, Generation, Request, StepEvent
from clover.engine.text import Detokenizer
from clover.metrics import Acceptance


class Row:
    """The host's side of one row of the batch.

    Args:
        index: the request's place in the list given to the engine.
        request: what was asked for.
        limit: tokens that the context leaves room for.
        eos: tokens that end the text where the request names none.
        tokenizer: for the text; None when the target has none.
        started: `time.perf_counter()` at the start of the batch.
    """

    def __init__(
        self,
        index: int,
        request: Request,
        limit: int,
        eos: tuple[int, ...],
        tokenizer: Any | None,
        started: float,
    ):
        self.index, self.request, self.limit = index, request, limit
        self.eos = eos if request.eos is None else request.eos
        self.tokens: list[int] = []
        self.acceptance = Acceptance()
        self.finish_reason: FinishReason | None = None
        self._detokenizer = Detokenizer(tokenizer, request.stop, request.prompt)
        self._started = started
        self._first_token_seconds = 0.0

    def accept(self, tokens: list[int], drafted_depth: int) -> StepEvent:
        """Take in what one step emitted, up to where the text ends.

        Args:
            tokens: accepted draft tokens and the bonus token.
            drafted_depth: depth of the tree that the step verified; 0 for a plain step.
        """
        kept, pieces = [], []
        for token in tokens:
            kept.append(token)
            self.tokens.append(token)
            pieces.append(self._detokenizer.push(token))
            self.finish_reason = self._finish_reason(token)
            if self.finish_reason:
                pieces.append(self._detokenizer.finish())
                break
        self.acceptance.record(len(kept), drafted_depth)
        if not self._first_token_seconds:
            self._first_token_seconds = time.perf_counter() - self._started
        return StepEvent(self.index, tuple(kept), "".join(pieces), self._generation())

    def _finish_reason(self, token: int) -> FinishReason | None:
        if token in self.eos or self._detokenizer.stopped:
            return "stop"
        if len(self.tokens) >= self.request.max_new_tokens:
            return "length"
        return "context" if len(self.tokens) >= self.limit else None

    def _generation(self) -> Generation | None:
        if self.finish_reason is None:
            return None
        return Generation(
            text=self._detokenizer.text,
            tokens=tuple(self.tokens),
            prompt_tokens=len(self.request.prompt),
            acceptance=self.acceptance,
            finish_reason=self.finish_reason,
            first_token_seconds=self._first_token_seconds,
            seconds=time.perf_counter() - self._started,
        )
