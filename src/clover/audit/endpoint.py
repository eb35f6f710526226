"""A server that speaks the completions part of OpenAI's protocol, as far as an audit needs it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from clover.errors import UserError, one_line
from clover.validation import parse_json

_TOP = 5  # log-probabilities per token
_SECONDS = 120.0  # for one answer


@dataclass(frozen=True)
class RemoteText:
    """The tokens of a text as strings, with each its log-probability and the best ones; both empty without any.

    `drafted` is whether the server says that a draft took part.
    """

    tokens: tuple[str, ...]
    own: tuple[float, ...]
    top: tuple[dict[str, float], ...]
    drafted: bool


@dataclass(frozen=True)
class Endpoint:
    """One server, plain or speculative.

    Args:
        url: with or without /v1 at the end.
        key: sent as a bearer token; None for none.
        model: its name there; the server's first one if None.
        body: fields that every request has besides the standard ones.
    """

    url: str
    key: str | None = None
    model: str | None = None
    body: dict[str, Any] = field(default_factory=dict)
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=_SECONDS), compare=False)

    def named(self) -> Endpoint:
        """Return the same with the server's model; UserError if it cannot be reached or has none."""
        models = None if self.model else self._fetch("models").get("data")
        try:
            return replace(self, model=self.model or str(models[0]["id"]))  # type: ignore[index]
        except (LookupError, TypeError) as error:
            raise UserError(f"{self.url}: the server lists no model; name one with --model") from error

    def complete_all(self, requests: Sequence[dict[str, Any]], together: int) -> list[RemoteText]:
        """Return the answers to completions requests, of which so many are sent at a time."""
        with ThreadPoolExecutor(together) as pool:
            return list(pool.map(self.complete, requests))

    def complete(self, request: dict[str, Any]) -> RemoteText:
        """Return the answer to one request; UserError if it is refused or no completion."""
        answer = self._fetch("completions", {"model": self.model, "logprobs": _TOP} | self.body | request)
        try:
            choice, acceptance = answer["choices"][0], answer.get("speculative_decoding")
            logprobs = choice.get("logprobs") or {}
            tokens = tuple(map(str, logprobs.get("tokens") or choice["text"]))
            own = tuple(map(float, logprobs.get("token_logprobs") or ()))
            top = tuple(
                {str(token): float(value) for token, value in (one or {}).items()}
                for one in logprobs.get("top_logprobs") or ()
            )
            drafted = bool(acceptance) and acceptance["draft_acceptance_rate"] is not None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.url}: the answer is no completion: {one_line(error)}") from error
        if not len(tokens) == len(own) == len(top):
            own, top = (), ()
        return RemoteText(tokens, own, top, drafted)

    def _fetch(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        url = f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{path}"
        headers = {b"Authorization": f"Bearer {self.key}".encode()} if self.key else {}
        try:
            response = self.client.request("POST" if body else "GET", url, json=body, headers=headers)
        except httpx.UnsupportedProtocol as error:
            raise UserError(
                f"{self.url!r} is no address of a server; it begins with http:// or https://"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"{self.url} cannot be reached: {one_line(error)}") from error
        if not response.is_success:
            reason = " ".join(response.text[:300].split()) or response.reason_phrase
            raise UserError(f"{self.url} refuses with {response.status_code}: {reason}")
        answer = parse_json(response.text, self.url)
        if not isinstance(answer, dict):
            raise UserError(f"{self.url}: the answer is no JSON object")
        return answer
