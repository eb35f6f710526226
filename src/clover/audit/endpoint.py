"""A server that speaks the completions part of OpenAI's protocol, as far as an audit needs it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from clover.errors import UserError, one_line
from clover.files import MAX_BYTES, decode_utf8
from clover.validation import parse_json

TOP = 5  # log-probabilities per token that are asked for
_SECONDS = 120.0  # for one answer


@dataclass(frozen=True)
class RemoteText:
    """What a server wrote: its tokens as text, with each its log-probability and the best ones; both empty if it tells
    none. `drafted` is whether the server says that a draft took part.
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
        model: name to ask for; the server's first one if None.
        body: fields that every request has besides the standard ones.
    """

    url: str
    key: str | None = None
    model: str | None = None
    body: dict[str, Any] = field(default_factory=dict)

    def named(self) -> Endpoint:
        """The same with the server's model; UserError if it cannot be reached or has none."""
        if self.model is not None:
            return self
        models = self._ask("models").get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise UserError(f"{self.url}: the server lists no model; name one with --model")
        return Endpoint(self.url, self.key, str(models[0].get("id")), self.body)

    def ask_all(self, requests: Sequence[dict[str, Any]], together: int) -> list[RemoteText]:
        """The answers to completions requests, so many at a time."""
        with ThreadPoolExecutor(together) as pool:
            return list(pool.map(self.ask, requests))

    def ask(self, request: dict[str, Any]) -> RemoteText:
        """The answer to one; UserError if it is refused or makes no sense."""
        found = self._ask("completions", {"model": self.model, "logprobs": TOP} | self.body | request)
        try:
            choice, told = found["choices"][0], found.get("speculative_decoding")
            listed = choice.get("logprobs") or {}
            tokens = tuple(map(str, listed.get("tokens") or choice["text"]))
            own = tuple(map(float, listed.get("token_logprobs") or ()))
            top = tuple(
                {str(token): float(value) for token, value in (one or {}).items()}
                for one in listed.get("top_logprobs") or ()
            )
            drafted = bool(told) and told["draft_acceptance_rate"] is not None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.url}: the answer is no completion: {one_line(error)}") from error
        if not len(tokens) == len(own) == len(top):
            own, top = (), ()
        return RemoteText(tokens, own, top, drafted)

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        base = self.url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            raise UserError(f"{self.url!r} is no address of a server; it begins with http:// or https://")
        headers = {"Content-Type": "application/json"}
        if self.key:  # as UTF-8, which headers are not written in by themselves
            headers["Authorization"] = f"Bearer {self.key}".encode().decode("latin-1")
        try:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"{base}/v1/{path}", data, headers)
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                content = answer.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise UserError(f"{self.url} refuses with {error.code}: {_reason(error)}") from error
        except (OSError, ValueError, HTTPException) as error:
            raise UserError(f"{self.url} cannot be reached: {one_line(error)}") from error
        found = parse_json(decode_utf8(content[:MAX_BYTES], self.url), self.url)
        if not isinstance(found, dict):
            raise UserError(f"{self.url}: the answer is no JSON object")
        return found


def _reason(error: urllib.error.HTTPError) -> str:
    """What a refusal says, on one line."""
    try:
        return " ".join(error.read(300).decode(errors="replace").split())
    except (OSError, HTTPException):  # it broke off
        return error.reason
