"""Build the JSON of responses, whole or in chunks, for chats and completions of OpenAI's interface."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from clover.chat import warn_of_marks
from clover.engine import Generation
from clover.engine.text import HALF_CHARACTER, token_name
from clover.metrics import Acceptance
from clover.serve import LEAST_LOGPROB
from clover.serve.bodies import ChatBody
from clover.serve.parsing import ParsedRequest
from clover.serve.tokens import TextToken, TokenQueue, describe_step
from clover.serve.worker import TextStep


@dataclass
class _Piece:
    """A part of one text: the contents of a chunk, or all of it. It has tokens only if the request asked for them."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[TextToken] = field(default_factory=list)
    finish_reason: str | None = None
    speculation: dict[str, Any] | None = None

    def extend(self, other: _Piece) -> None:
        """Append the piece that follows."""
        self.text += other.text
        self.reasoning += other.reasoning
        self.calls += other.calls
        self.tokens += other.tokens
        self.finish_reason = other.finish_reason

    @property
    def empty(self) -> bool:
        """Return True if a chunk would have no content."""
        said = (self.text, self.reasoning, self.calls, self.tokens, self.finish_reason, self.speculation)
        return not any(said)

    @property
    def parts(self) -> dict[str, Any]:
        """Return the fields of a chat's message other than its content."""
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return reasoning | ({"tool_calls": self.calls} if self.calls else {})


class Answer:
    """One response; feed it the steps of its texts.

    Args:
        model: the name of the model.
        tokenizer: the target's tokenizer.
    """

    def __init__(self, parsed: ParsedRequest, model: str, tokenizer: Any):
        self._parsed, self._tokenizer = parsed, tokenizer
        kind = "chatcmpl" if parsed.chat else "cmpl"
        self._head = {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._tokens = [TokenQueue() for _ in parsed.requests]
        self._replies = [parsed.new_reply() for _ in parsed.requests] if parsed.new_reply else []
        self._calls = Counter[int]()  # by text
        self._steps = Counter[int]()
        self._written = 0  # tokens, of all texts
        self._ended: dict[int, Generation] = {}

    # -- whole -----------------------------------------------------------------------------------------------------

    def whole(self, steps: Sequence[TextStep]) -> dict[str, Any]:
        """Return the whole response, for a request without streaming."""
        pieces = [_Piece() for _ in self._parsed.requests]
        for step in steps:
            pieces[step.choice].extend(self._piece(step))
        choices = [self._choice(number, piece) for number, piece in enumerate(pieces)]
        kind = "chat.completion" if self._parsed.chat else "text_completion"
        return self._head | {"object": kind, "choices": choices, "usage": self._usage()} | self._acceptance()

    def _choice(self, number: int, piece: _Piece) -> dict[str, Any]:
        logprobs = self._logprobs(piece) if self._parsed.requests[number].logprobs is not None else None
        said = {"index": number, "logprobs": logprobs, "finish_reason": piece.finish_reason}
        if self._parsed.chat:
            content = piece.text or (None if piece.calls else "")
            for call in piece.calls:
                del call["index"]  # only chunks have it
            message = {"role": "assistant", "content": content, "refusal": None} | piece.parts
            return said | {"message": message}
        return said | {"text": piece.text}

    # -- in chunks -------------------------------------------------------------------------------------------------

    def opening(self) -> list[dict[str, Any]]:
        """Return the chunks before the first step."""
        if not self._parsed.chat:
            return []
        delta = {"role": "assistant", "content": ""}
        numbers = range(len(self._parsed.requests))
        return [
            self._chunk({"index": n, "delta": delta, "logprobs": None, "finish_reason": None})
            for n in numbers
        ]

    def chunk(self, step: TextStep) -> dict[str, Any] | None:
        """Return the chunk of one step; None if it has no content yet."""
        piece = self._piece(step)
        if piece.empty:
            return None
        said = {"index": step.choice, "logprobs": self._logprobs(piece) if piece.tokens else None}
        said["finish_reason"] = piece.finish_reason
        if self._parsed.chat:
            parts = piece.parts
            said |= {"delta": ({} if parts and not piece.text else {"content": piece.text}) | parts}
        else:
            said |= {"text": piece.text}
        chunk = self._chunk(said)
        options = self._parsed.body.stream_options
        if options is not None and options.continuous_usage_stats:
            chunk |= {"usage": self._counts(self._written)}
        if piece.speculation is not None:
            chunk["speculation"] = piece.speculation
        if len(self._ended) == len(self._parsed.requests):
            chunk |= self._acceptance()
        return chunk

    def closing(self) -> list[dict[str, Any]]:
        """Return the chunks after the last step."""
        options = self._parsed.body.stream_options
        if options is None or not options.include_usage:
            return []
        return [self._chunk() | {"usage": self._usage()} | self._acceptance()]

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._parsed.chat else "text_completion"
        return self._head | {"object": kind, "choices": list(choices)}

    # -- parts -----------------------------------------------------------------------------------------------------

    def _piece(self, step: TextStep) -> _Piece:
        event, request = step.event, self._parsed.requests[step.choice]
        piece = self._parted(step) if self._replies else _Piece(event.text)
        self._written += len(event.tokens)
        if event.generation is not None:
            self._ended[step.choice] = event.generation
            if self._parsed.chat and request.eos != ():  # With ignore_eos, end tokens are part of the text.
                warn_of_marks(self._tokenizer, request.hidden, event.generation.tokens)
            # "length" is OpenAI's word; it includes the end of the context.
            piece.finish_reason = "stop" if event.generation.finish_reason == "stop" else "length"
            if self._calls[step.choice] and piece.finish_reason == "stop":
                piece.finish_reason = "tool_calls"
        if request.logprobs is None and not request.show_trees:
            return piece
        parts = self._tokens[step.choice].push(event)
        if request.logprobs is not None:
            piece.tokens = [part.token for part in parts if part.first]
        if request.show_trees:
            self._steps[step.choice] += 1
            piece.speculation = describe_step(self._steps[step.choice], step, parts, self._tokenizer)
        return piece

    def _parted(self, step: TextStep) -> _Piece:
        """Return the parts of an answer that are certain after a step."""
        reply, body = self._replies[step.choice], self._parsed.body
        delta = reply.feed(step.event.text)
        if step.event.generation is not None:
            delta += reply.finish()
        piece = _Piece(delta.content, delta.reasoning)
        for call in delta.calls:
            number = self._calls[step.choice]
            if number and isinstance(body, ChatBody) and body.parallel_tool_calls is False:
                continue
            self._calls[step.choice] += 1
            # Ids have nine letters or digits, because Mistral's templates refuse others.
            piece.calls.append({"index": number} | call.to_dict(uuid.uuid4().hex[:9]))
        return piece

    def _logprobs(self, piece: _Piece) -> dict[str, Any]:
        told = [one.logprobs for one in piece.tokens if one.logprobs is not None]
        own = [
            self._named(one.token, logprobs.logprob) for one, logprobs in zip(piece.tokens, told, strict=True)
        ]
        tops = [[self._named(*pair) for pair in logprobs.top] for logprobs in told]
        if self._parsed.chat:
            content = [
                _entry(*one) | {"top_logprobs": [_entry(*pair) for pair in top]}
                for one, top in zip(own, tops, strict=True)
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": [name for name, _ in own],
            "token_logprobs": [value for _, value in own],
            # As with OpenAI, the text's own token is listed even if it is not one of the likeliest.
            "top_logprobs": [_by_name([*top, one]) for one, top in zip(own, tops, strict=True)],
            "text_offset": [one.offset for one in piece.tokens],
        }

    def _named(self, token: int, logprob: float) -> tuple[str, float]:
        return token_name(self._tokenizer, token), _sayable(logprob)

    def _usage(self) -> dict[str, Any]:
        new = sum(len(one.tokens) for one in self._ended.values())
        texts = self._parsed.body.n or 1
        cached = sum(one.cached_tokens for number, one in self._ended.items() if number % texts == 0)
        return self._counts(new) | {"prompt_tokens_details": {"cached_tokens": cached}}

    def _counts(self, new: int) -> dict[str, Any]:
        prompt = self._parsed.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    def _acceptance(self) -> dict[str, Any]:
        """Return the acceptance of all texts together, by vLLM's names; no rate if nothing was drafted."""
        whole = reduce(add, (one.acceptance for one in self._ended.values()), Acceptance())
        told = {
            "mean_acceptance_length": whole.tau,
            "draft_acceptance_rate": whole.accepted / whole.drafted if whole.drafted else None,
            "acceptance_histogram": whole.histogram,
        }
        return {"speculative_decoding": told}


def _by_name(tokens: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Map the tokens' names to log-probabilities, in order; if two have the same name, the first one counts."""
    return dict(tokens) | dict(reversed(tokens))


def _sayable(logprob: float) -> float:
    """Replace -inf and NaN, which JSON does not have, by the least that OpenAI returns."""
    return max(LEAST_LOGPROB, logprob)  # in this order: a comparison with NaN is false


def _entry(token: str, logprob: float) -> dict[str, Any]:
    """Return a chat's entry for one token; its bytes are null if it is a part of a character."""
    known = HALF_CHARACTER not in token
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()) if known else None}
