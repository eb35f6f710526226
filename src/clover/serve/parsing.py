"""Turn the body of an HTTP request into requests for the engine."""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from torch import Tensor

from clover.api import Clover, check_grammar_fits
from clover.chat import ReplyParser, call_grammar
from clover.engine import Request
from clover.errors import UserError, one_line
from clover.grammar import GrammarSpec
from clover.sampling import SamplingParams
from clover.sampling.params import Process
from clover.serve.bodies import Body, ChatBody, CompletionBody
from clover.serve.errors import ApiError, no_model
from clover.templates import check_template_options

_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "logit_bias")
_SAMPLING += ("repetition_penalty", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True)
class ParsedRequest:
    """The requests of one body: n texts for each prompt, in the order of the prompts."""

    body: Body
    requests: tuple[Request, ...]
    prompt_tokens: int
    new_reply: Callable[[], ReplyParser] | None = None  # for answers with thinking or calls

    @property
    def chat(self) -> bool:
        """Return True for a body of /v1/chat/completions."""
        return isinstance(self.body, ChatBody)


class RequestParser:
    """A parser of bodies. It has its own thread and tokenizer, because threads cannot share a tokenizer.

    Args:
        model: the model whose engine will run the requests.
        name: the model's name for clients.
        most_tokens: most new tokens of a request; None for as many as the target can run.
        most_texts: most texts of a request.
        grammar: the grammar of texts whose request has none; UserError if it cannot be used.
    """

    def __init__(
        self,
        model: Clover,
        name: str,
        most_tokens: int | None,
        most_texts: int,
        grammar: GrammarSpec | None = None,
    ):
        self._name, self._most_tokens, self._most_texts = name, most_tokens, most_texts
        self._engine, self._model = model.engine, copy.copy(model)
        target: Any = copy.copy(model.target)
        target.tokenizer = copy.deepcopy(model.target.tokenizer)
        self._model.target = target
        longest = max(map(len, self._model.target.require_tokenizer().get_vocab()))
        self._most_characters = model.target.longest_run * longest
        self._grammar = grammar
        if grammar is not None:
            self._model.follow(grammar, SamplingParams())
        self.executor = ThreadPoolExecutor(1, "clover-tokenizer")

    def parse(self, body: Body) -> ParsedRequest:
        """Return the engine's requests; ApiError if it cannot run them."""
        if body.model not in (None, self._name):
            raise no_model(self._name)
        if isinstance(body, ChatBody) and len(body.messages) > self._engine.target.longest_run:
            raise self._too_long(f"{len(body.messages)} messages", "messages")  # each has at least one token
        given, texts = _prompts(body), body.n or 1
        if len(given) * texts > self._most_texts:
            message = f"{len(given) * texts} texts are asked for at once; the most is {self._most_texts}"
            raise ApiError(400, message, "invalid_value", "n")
        tools = [tool.for_template() for tool in body.offered] if isinstance(body, ChatBody) else []
        with _errors_of("tools" if tools else "messages"):
            format = self._model.find_format(given[0], tools)
        prompts = [tuple(self._encoded(prompt, body, tools)) for prompt in given]
        # Without a seed equal prompts get different texts.
        seeds = [secrets.randbits(63) if body.seed is None else body.seed for _ in prompts]
        pairs = zip(prompts, seeds, strict=True)
        new_reply = call = None
        if format is not None:
            before = self._model.target.require_tokenizer().decode(prompts[0])
            new_reply = partial(ReplyParser, format, before, tools)
            if isinstance(body, ChatBody) and body.forced:
                with _errors_of("tool_choice"):
                    call = call_grammar(format, [tool.for_template() for tool in body.forced], before)
        hidden = None if format is None else format.hidden
        follow = self._follow(body, new_reply, bool(tools), call)
        made = [
            self._request(body, prompt, seed + i, hidden, follow)
            for prompt, seed in pairs
            for i in range(texts)
        ]
        return ParsedRequest(body, tuple(made), sum(map(len, prompts)), new_reply)

    def _follow(
        self, body: Body, new_reply: Callable[[], ReplyParser] | None, tools: bool, call: str | None
    ) -> Callable[[SamplingParams], SamplingParams]:
        """Return the function that adds the body's grammar, or the server's, to the sampling parameters.

        `call` is the grammar of a call that the body forces.
        """
        format = body.response_format if isinstance(body, ChatBody) else None
        grammar = self._grammar if format is None else format.grammar
        if call is not None and grammar is None and not body.ignore_eos:
            return partial(self._model.follow, call)
        if grammar is None:
            return lambda params: params
        if body.ignore_eos:
            raise ApiError(400, "ignore_eos cannot be combined with a grammar", "invalid_value", "ignore_eos")
        with _errors_of("response_format"):
            check_grammar_fits(new_reply and new_reply(), tools)
        return partial(self._model.follow, grammar)

    def _encoded(
        self, prompt: str | Sequence[int] | list[dict[str, Any]], body: Body, tools: list[dict[str, Any]]
    ) -> Sequence[int]:
        field = _prompt_field(body)
        options = body.chat_template_kwargs or {} if isinstance(body, ChatBody) else {}
        length = _characters(prompt) + sum(len(json.dumps(one)) for one in (tools, options) if one)
        if length > self._most_characters:  # tokenizing them would take seconds
            raise self._too_long(f"{length} characters", field)
        with _errors_of("chat_template_kwargs"):
            check_template_options(self._model.target.tokenizer, options, tools)
        with _errors_of(field):
            return self._model.encode(prompt, tools, options)

    def _request(
        self,
        body: Body,
        prompt: tuple[int, ...],
        seed: int,
        hidden: frozenset[int] | None,
        follow: Callable[[SamplingParams], SamplingParams],
    ) -> Request:
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        options = body.stream_options
        with _errors_of("temperature"):  # the body checks the bounds of all others
            params = _params(body, seed, self._end_later(body, len(prompt)))
        with _errors_of("response_format"):
            params = follow(params)
        with _errors_of("logit_bias"):
            params.check_vocabulary(self._engine.target.vocab_size)
        with _errors_of(_prompt_field(body)):
            request = Request(
                prompt,
                self._new_tokens(body, len(prompt)),
                params,
                stop,
                eos=() if body.ignore_eos else None,
                logprobs=_logprobs(body),
                keep=isinstance(body, ChatBody),
                plain=body.speculation is False,
                show_trees=bool(body.stream and options and options.include_speculation),
                hidden=hidden,
            )
            self._engine.check(request)
        return request

    def _end_later(self, body: Body, prompt_tokens: int) -> Process | None:
        """Return the process that keeps a text from ending before `min_tokens`; None if none is needed."""
        least = body.min_tokens or 0
        if body.stop and least:
            raise ApiError(400, "min_tokens cannot be combined with stop", "invalid_value", "min_tokens")
        if least > (body.max_tokens or body.max_completion_tokens or least):
            raise ApiError(400, "min_tokens is above max_tokens", "invalid_value", "min_tokens")
        ends = list(self._engine.target.eos_token_ids)
        if not least or body.ignore_eos or not ends:
            return None

        def process(texts: Tensor, logits: Tensor) -> Tensor:
            if texts.shape[1] - prompt_tokens >= least:
                return logits
            logits = logits.clone()
            logits[:, ends] = -inf
            return logits

        return process

    def _too_long(self, length: str, field: str) -> ApiError:
        message = f"{self._limit}; the {length} of the prompt do not fit"
        return ApiError(400, message, "context_length_exceeded", field)

    @property
    def _limit(self) -> str:
        target = self._engine.target
        return f"the {target.run_limit} is {target.longest_run} tokens"

    def _new_tokens(self, body: Body, prompt_tokens: int) -> int:
        field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        asked: int | None = getattr(body, field)
        default = None if isinstance(body, ChatBody) else _COMPLETION_TOKENS
        room = self._engine.target.longest_run - prompt_tokens
        if room < 1:
            raise self._too_long(f"{prompt_tokens} tokens", _prompt_field(body))
        if asked is None:
            bounds = [bound for bound in (room, self._most_tokens, default) if bound is not None]
            return min(bounds)
        if asked > room:
            message = f"{self._limit}; {prompt_tokens} of the prompt and {asked} new ones do not fit"
            raise ApiError(400, message, "context_length_exceeded", field)
        if self._most_tokens is not None and asked > self._most_tokens:
            message = f"this server writes at most {self._most_tokens} tokens per text; {asked} are asked for"
            raise ApiError(400, message, "invalid_value", field)
        return asked


@contextmanager
def _errors_of(field: str) -> Iterator[None]:
    """Raise a UserError of the block as an ApiError for `field`."""
    try:
        yield
    except UserError as error:
        raise ApiError(400, one_line(error), "invalid_value", field) from error


def _prompts(body: Body) -> Sequence[str | Sequence[int] | list[dict[str, Any]]]:
    if isinstance(body, ChatBody):
        return [[message.for_template() for message in body.messages]]
    prompt = body.prompt
    single = isinstance(prompt, str) or isinstance(prompt[0], int)
    return [prompt] if single else prompt  # type: ignore[list-item, return-value]


def _characters(prompt: str | Sequence[int] | list[dict[str, Any]]) -> int:
    """Count the characters of a prompt; 0 if it is given as tokens."""
    if isinstance(prompt, str):
        return len(prompt)
    said = [value for one in prompt if isinstance(one, dict) for name, value in one.items() if name != "role"]
    return sum(len(value) if isinstance(value, str) else len(json.dumps(value)) for value in said if value)


def _prompt_field(body: Body) -> str:
    return "messages" if isinstance(body, ChatBody) else "prompt"


def _params(body: Body, seed: int, process: Process | None) -> SamplingParams:
    """Return the parameters of one text; defaults are OpenAI's."""
    said: dict[str, Any] = {"temperature": 1.0}
    said |= {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    return SamplingParams(**said, seed=seed % 2**63, process=process)


def _logprobs(body: Body) -> int | None:
    """Return how many of the likeliest tokens are listed with each token; None for no log-probabilities at all."""
    if isinstance(body, CompletionBody):
        return body.logprobs
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", "invalid_value", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
