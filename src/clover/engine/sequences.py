"""One running request: its tokens so far, its text, and when it ends."""

import time
from functools import cached_property

from clover.drafts.ngrams import RepeatingText
from clover.engine.requests import ErrorKind, FinishReason, Generation, Request, StepEvent
from clover.engine.text import Detokenizer, with_special_tokens
from clover.errors import UserError
from clover.metrics import Acceptance
from clover.target import Target


class RunningSequence:
    """The host's state of one sequence of the batch; `index` is the request's number in order of arrival."""

    def __init__(self, index: int, request: Request, target: Target):
        self.index, self.request = index, request
        self.limit = target.longest_run - len(request.prompt)  # the most new tokens after this prompt
        self.eos = target.eos_token_ids if request.eos is None else request.eos
        self.tokens: list[int] = []
        self.acceptance = Acceptance()
        self.finish_reason: FinishReason | None = None
        self.error = ""  # why grammar or process let no token be chosen; "" if the logits are NaN or infinite
        self.cached_tokens = 0  # prompt tokens that need not run
        self.prefilled = 0  # scheduled prompt tokens, with padding; may exceed the prompt's length
        self._detokenizer = Detokenizer(target.tokenizer, request.stop, request.prompt, request.hidden)
        # Stop strings may contain special tokens, which the text omits; they are looked for in a text that shows them.
        shown = with_special_tokens(target.tokenizer, request.stop)
        self._shown = Detokenizer(target.tokenizer, shown, request.prompt, frozenset()) if shown else None
        self._dtype = str(target.dtype).removeprefix("torch.")
        self._started = 0.0
        self._first_token_seconds = 0.0

    @property
    def repeating(self) -> RepeatingText:
        """Return the text so far, with the place of an earlier occurrence of its end."""
        text = self._repeating
        text.extend(self.tokens[len(text) - len(self.request.prompt) :])
        return text

    @cached_property
    def _repeating(self) -> RepeatingText:
        return RepeatingText(self.request.prompt)

    def start(self) -> None:
        """Note the time when the request's prompt begins to run."""
        self._started = time.perf_counter()

    def accept(self, tokens: list[int], path: list[int], drafted_depth: int, usable: int) -> StepEvent:
        """Append the accepted draft tokens and the bonus token of one step, up to the end of the text.

        Args:
            path: the accepted nodes of the step's tree, root included.
            drafted_depth: depth of the tree; 0 for a plain step.
            usable: how many of `tokens` could be chosen. The text ends with an error before the next one.
        """
        before, text, pieces = len(self.tokens), "", []
        for token in tokens[:usable]:
            self.tokens.append(token)
            self.finish_reason = self._end_after(token)
            if self._shown is not None:
                self._shown.push(token)
            stopped = self._shown is not None and self._shown.stopped
            text += "" if stopped else self._detokenizer.push(token)
            if self.finish_reason or stopped:
                text += self._detokenizer.finish()
            pieces.append("" if stopped else self._detokenizer.piece)
            if self._detokenizer.stopped or stopped:
                self.finish_reason = "stop"
            if self.finish_reason:
                break
        emitted = tuple(self.tokens[before:])
        if usable < len(tokens) and not self.finish_reason:
            self.finish_reason = "error"
            text += self._detokenizer.finish()
        if emitted:
            self.acceptance.record(len(emitted), drafted_depth, cut=len(emitted) < len(tokens))
        if not self._first_token_seconds:
            self._first_token_seconds = time.perf_counter() - self._started
        return StepEvent(self.index, emitted, text, self._generation(), tuple(path), tuple(pieces))

    def _end_after(self, token: int) -> FinishReason | None:
        """Return why the text ends with its last token, apart from stop strings; None if it continues."""
        if token in self.eos:
            return "stop"
        if len(self.tokens) < min(self.request.max_new_tokens, self.limit):
            return None
        return "length" if self.request.max_new_tokens <= self.limit else "context"

    def _generation(self) -> Generation | None:
        if self.finish_reason is None:
            return None
        failed = self.finish_reason == "error"
        kind: ErrorKind = "process" if self.request.params.grammar is None else "grammar"
        return Generation(
            text=self._detokenizer.text,
            tokens=tuple(self.tokens),
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            acceptance=self.acceptance,
            finish_reason=self.finish_reason,
            first_token_seconds=self._first_token_seconds,
            seconds=time.perf_counter() - self._started,
            error=(self.error or _unusable(self._dtype)) if failed else "",
            error_kind=(kind if self.error else "logits") if failed else None,
        )


def _unusable(dtype: str) -> str:
    """Return the error message for logits that cannot be used, with a remedy."""
    if dtype in ("float32", "float64"):
        remedy = "its weights are damaged, or do not belong to its configuration: load the model anew"
    else:
        remedy = "its activations exceed the range of this dtype: load it in " + (
            "bfloat16 or float32" if dtype == "float16" else "float32"
        )
    return f"the target's logits are NaN or infinite in {dtype}; {remedy}"


def check_request(request: Request, target: Target) -> None:
    """Raise UserError if the prompt leaves no room for a new token, or the target lacks what the request needs."""
    length, most = len(request.prompt), target.longest_run
    if length >= most:
        raise UserError(
            f"the prompt has {length} tokens but the target's {target.run_limit} is {most}; shorten it"
        )
    if not all(0 <= token < target.vocab_size for token in request.prompt):
        raise UserError(f"the prompt has a token outside the vocabulary of {target.vocab_size} tokens")
    if request.stop:
        target.require_tokenizer()
    request.params.check_vocabulary(target.vocab_size)
