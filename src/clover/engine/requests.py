"""The requests and the results of the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from clover.errors import UserError
from clover.files import check_characters
from clover.metrics import Acceptance
from clover.sampling import SamplingParams

FinishReason = Literal["stop", "length", "context", "error"]
ErrorKind = Literal["grammar", "process", "logits"]


@dataclass(frozen=True)
class Request:
    """One text to be continued.

    Args:
        prompt: token ids, at least one.
        stop: the text ends before the first of these strings that would occur in it, special tokens included.
        eos: tokens that end the text; the target's own if None, none if empty.
        hidden: special tokens that are left out of the text; None for all of them.
        logprobs: number of most probable tokens whose log-probabilities the events have, besides that of the emitted
            token; None for no log-probabilities.
        show_trees: whether events contain the drafted trees.
        plain: decode this request without drafting, even if the batch has a draft.
        keep: whether the text is kept for requests that continue it, if the batch has a `PrefixStore`.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int = 256
    params: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    eos: tuple[int, ...] | None = None
    logprobs: int | None = None
    show_trees: bool = False
    plain: bool = False
    keep: bool = False
    hidden: frozenset[int] | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError("the prompt is empty; give at least one token")
        if not isinstance(self.max_new_tokens, int) or self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens is {self.max_new_tokens!r}; it must be a whole number from 1 on")
        if self.logprobs is not None and not (isinstance(self.logprobs, int) and self.logprobs >= 0):
            raise UserError(f"logprobs is {self.logprobs!r}; it must be None or a whole number from 0 on")
        for name, tokens in (("the prompt", self.prompt), ("eos", () if self.eos is None else self.eos)):
            if not isinstance(tokens, Sequence) or not all(isinstance(token, Integral) for token in tokens):
                raise UserError(f"{name} does not consist of whole numbers; give a tuple of token ids")
        for text in self.stop:
            if not isinstance(text, str):
                raise UserError(f"a stop string is {text!r}; give strings")
            check_characters(text, "a stop string")
        if "" in self.stop:
            raise UserError("a stop string is empty; leave it out")


@dataclass(frozen=True)
class TokenLogprobs:
    """The natural log-probability of a token, and the most probable tokens with theirs, highest first.

    They are the target's, before temperature, penalties and all other processors.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Drafted:
    """The token tree of one sequence in one step, without its root: each node's token, and its parent or -1.

    `path` has the accepted nodes from depth 1 down, even those after the end of the text. `copied` is True if prompt
    lookup copied the tree from the text, so that the draft did not run.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    copied: bool


@dataclass(frozen=True)
class Generation:
    """A finished continuation.

    Args:
        text: the new text, without special tokens and without the stop string; "" if the target has no tokenizer.
        tokens: the new token ids, including an end-of-sequence token that ended the text.
        finish_reason: "stop" (end-of-sequence token or stop string), "length" (max_new_tokens) or "context" (the
            target's limit); "error" if the next token cannot be chosen. `error` then has the cause in one line.
        error_kind: the source of the error: "grammar", "process", or "logits" that are NaN or infinite; None without.
        cached_tokens: prompt tokens that did not run, because a stored text had them.
        reasoning: the model's text before its answer to a conversation; the front ends move it here from `text`.
        first_token_seconds, seconds: from the start of the prefill to the first and to the last token.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    acceptance: Acceptance
    finish_reason: FinishReason
    first_token_seconds: float
    seconds: float
    error: str = ""
    reasoning: str = ""
    error_kind: ErrorKind | None = None


@dataclass(frozen=True)
class StepEvent:
    """The result of one decoding step for one request.

    Args:
        index: the request's place in the list given to the engine, or its number from `Scheduler.add`.
        tokens: tokens emitted by this step, at least one unless the text ends with an error.
        text: the text that became certain in this step; may be "" (half a character, a possible stop string).
        generation: the whole result, only in the request's last event.
        path: accepted nodes of the step's tree, root included, even those after the end of the text.
        pieces: the text that each token completed, even if it is held back or part of a stop string; "" for half a
            character. The joined pieces of a text begin with the text.
        logprobs: log-probabilities of each token, if the request has `logprobs`.
        drafted: the step's tree, if the request has `show_trees`.
    """

    index: int
    tokens: tuple[int, ...]
    text: str
    generation: Generation | None = None
    path: tuple[int, ...] = (0,)
    pieces: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    drafted: Drafted | None = None
