"""Texts of a server with OpenAI's completions interface, with and without speculation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import inf, nan
from typing import Any

import httpx

from clover.audit.texts import ENDED, Case, Text, Token, Write
from clover.errors import UserError, one_line
from clover.measure.budget import Enough, never
from clover.measure.report.goodness_of_fit import two_samples
from clover.sampling import SamplingParams
from clover.serve import LEAST_LOGPROB
from clover.validation import parse_json

_TOP = 5  # the number of log-probabilities that are requested for each token
_SECONDS = 120.0  # the timeout of one answer
_NO_TIE = 1.0  # A larger gap of log-probabilities is not a near-tie, whatever the rounding.
_LEAST_ERROR = 0.0025  # the smallest error of log-probabilities that is assumed
_DRAWS, _DRAWN_TOKENS, _DRAWN_PROMPTS, _DRAWN_TOGETHER = 200, 6, 4, 8


def server_params(temperature: float) -> list[SamplingParams]:
    """Return the parameters that sampled texts use in turn; every server of this kind supports them."""
    hot = SamplingParams(temperature=temperature)
    return [hot, replace(hot, top_p=0.9), replace(hot, frequency_penalty=0.5)]


@dataclass(frozen=True)
class Endpoint:
    """One server, plain or speculative: a source of texts.

    `speculation` is the request field of this name, unless it is None; if it is True, the server must report that it
    drafts. `exact` is True if equal seeds give equal texts with and without speculation.
    """

    url: str
    key: str | None = None
    model: str | None = None
    speculation: bool | None = None
    exact: bool = False
    equal = False  # Greedy texts need not be equal.
    goes_on = False  # Its tokens are strings, which may become other tokens in a prompt.
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=_SECONDS), compare=False)

    def named(self) -> Endpoint:
        """Return a copy with the server's model; UserError if the server cannot be reached or has no model."""
        models = None if self.model else self._fetch("models").get("data")
        try:
            return replace(self, model=self.model or str(models[0]["id"]))  # type: ignore[index]
        except (LookupError, TypeError) as error:
            raise UserError(f"{self.url}: the server lists no model; name one with --model") from error

    def write(self, cases: Sequence[Case], together: int, enough: Enough = never) -> list[Text]:
        """Return the answers to completions requests; UserError if a request is refused or an answer is invalid.

        Once `enough` returns True, no more requests are sent.
        """
        texts, drafted = list[Text](), False

        def ask(number: int) -> dict[str, Any] | None:
            return None if number and enough() else self._fetch("completions", self._body(cases[number]))

        with ThreadPoolExecutor(together) as pool:
            for answer in pool.map(ask, range(len(cases))):
                if answer is None:
                    texts.append(Text((), cut=True))
                    continue
                try:
                    texts.append(_text(answer))
                    acceptance = answer.get("speculative_decoding")
                    drafted |= bool(acceptance) and acceptance["draft_acceptance_rate"] is not None
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    raise UserError(f"{self.url}: the completion is invalid: {one_line(error)}") from error
        if self.speculation and not drafted and not any(text.cut for text in texts):
            raise UserError(
                f'{self.url} does not say that it drafts, so it may not know the field "speculation"; '
                "give a server without speculation by --plain-server"
            )
        return texts

    def _body(self, case: Case) -> dict[str, Any]:
        params, prompt = case.params, case.prompt + "".join(case.start)
        body = {"model": self.model, "prompt": prompt, "max_tokens": case.new_tokens, "logprobs": _TOP}
        body["temperature"] = params.temperature
        if self.speculation is not None:
            body["speculation"] = self.speculation
        if not params.greedy:
            body |= {name: getattr(params, name) for name in ("seed", "top_p", "frequency_penalty")}
        return body

    def least_error(self, texts: Iterable[Text]) -> float:
        """Return an error of log-probabilities that is never a defect."""
        return _LEAST_ERROR

    def gap(self, case: Case, plain: Text, at: int, token: Token) -> float | None:
        """Return the distance of two log-probabilities, inf if one is missing; None (unknown) for sampled texts."""
        if not case.params.greedy:
            return None
        if not plain.logprobs:
            return inf
        gap = abs(plain.logprobs[at].get(plain.tokens[at], inf) - plain.logprobs[at].get(token, -inf))
        return gap if gap <= _NO_TIE else inf

    def test_draws(
        self,
        name: str,
        write: Write,
        cases: Sequence[Case],
        temperature: float,
        rounding: float,
        enough: Enough = never,
    ) -> tuple[dict[str, float], list[str]]:
        """Return p-values that the sampled tokens of both sides come from one distribution; no defects in words.

        A prompt does not count if its texts are cut by the time limit.
        """
        p_values = {}
        for case in list(dict.fromkeys(cases))[:_DRAWN_PROMPTS]:
            samples, cut = [], False
            for first, side in enumerate((self.write, write)):
                seeds = range(first * _DRAWS, (first + 1) * _DRAWS)
                params = [SamplingParams(temperature=temperature, seed=seed) for seed in seeds]
                drawn = [replace(case, new_tokens=_DRAWN_TOKENS, params=one) for one in params]
                texts = side(drawn, _DRAWN_TOGETHER, enough)
                cut = cut or any(text.cut for text in texts)
                samples.append(zip_longest(*(text.tokens for text in texts), fillvalue=ENDED))
            if cut:
                break
            for at, columns in enumerate(zip(*samples, strict=False), start=1):
                p_values[f"{name}, prompt {case.number}, token {at}"] = two_samples(*columns)
        return p_values, []

    def _fetch(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        url = f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{path}"
        headers = {b"Authorization": f"Bearer {self.key}".encode()} if self.key else {}
        try:
            response = self.client.request("POST" if body else "GET", url, json=body, headers=headers)
        except httpx.UnsupportedProtocol as error:
            raise UserError(
                f"{self.url!r} is not the address of a server; it must begin with http:// or https://"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"{self.url} cannot be reached: {one_line(error)}") from error
        if not response.is_success:
            reason = " ".join(response.text[:300].split()) or response.reason_phrase
            raise UserError(f"{self.url} refuses with {response.status_code}: {reason}")
        answer = parse_json(response.text, self.url)
        if not isinstance(answer, dict):
            raise UserError(f"{self.url}: the answer is not a JSON object")
        return answer


def _text(answer: dict[str, Any]) -> Text:
    choice = answer["choices"][0]
    logprobs: dict[str, Any] = choice.get("logprobs") or {}
    tokens = tuple(map(str, logprobs.get("tokens") or choice["text"]))
    own: list[float] = logprobs.get("token_logprobs") or []
    top: list[Any] = logprobs.get("top_logprobs") or []
    if not len(tokens) == len(own) == len(top):
        return Text(tokens)
    entries = [
        {str(name): float(value) for name, value in (best or {}).items() if value > LEAST_LOGPROB}
        | {token: float(value) if value > LEAST_LOGPROB else nan}
        for token, value, best in zip(tokens, own, top, strict=True)
    ]
    return Text(tokens, tuple(entries))
