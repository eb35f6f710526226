"""Check every request before the application: its key, and the kind and size of its body. Add headers for browsers.

Slow request headers are not limited here. If strangers can reach the server, a reverse proxy must do that.
"""

from __future__ import annotations

import asyncio
import hmac
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clover.serve.errors import ApiError

_CLOSE = {"Connection": "close"}  # because the rest of the body is not read
GENERATION_PATHS = ("/v1/completions", "/v1/chat/completions")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """The outermost layer of the application.

    Args:
        api_key: the key that /v1 and /metrics expect; None for no key.
        max_body_bytes, read_seconds: most bytes of a request's body, and most seconds until it has arrived.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, max_body_bytes: int, read_seconds: float):
        self._app, self._max_bytes, self._seconds = app, max_body_bytes, read_seconds
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = self._problem(scope)
        if problem is not None:
            await problem.response()(scope, receive, _with_headers(send))
        else:
            await self._app(scope, self._bounded(receive), _with_headers(send))

    def _problem(self, scope: Scope) -> ApiError | None:
        headers, path = Headers(scope=scope), scope["path"]
        if self._expected is not None and (path.startswith("/v1/") or path == "/metrics"):
            key = headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(key, self._expected):
                challenge = {"WWW-Authenticate": "Bearer", **_CLOSE}
                message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
                return ApiError(401, message, "invalid_api_key", headers=challenge)
        size = headers.get("content-length", "")
        if size.isdecimal() and int(size[:20]) > self._max_bytes:
            return self._too_large()
        return _unreadable(headers) if scope["method"] == "POST" and path in GENERATION_PATHS else None

    def _too_large(self) -> ApiError:
        message = f"the body is larger than {self._max_bytes} bytes"
        return ApiError(413, message, "body_too_large", headers=_CLOSE)

    def _bounded(self, receive: Receive) -> Receive:
        """Wrap `receive` to raise ApiError if the body grows too large or does not arrive in time."""
        size, whole = 0, False
        end = time.monotonic() + self._seconds

        async def bounded() -> Message:
            nonlocal size, whole
            if whole:  # the next message says that the client has disconnected
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), end - time.monotonic())
            except asyncio.TimeoutError as error:
                late = f"the request did not arrive within {self._seconds:g} s"
                raise ApiError(408, late, "timeout", headers=_CLOSE) from error
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > self._max_bytes:
                raise self._too_large()
            return message

        return bounded


def _unreadable(headers: Headers) -> ApiError | None:
    """Return the error if the headers announce a body that is not plain JSON."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        problem = "the body must be JSON; send Content-Type: application/json"
    elif headers.get("content-encoding", "identity").lower() != "identity":
        problem = "compressed bodies are not read; leave out Content-Encoding"
    else:
        return None
    return ApiError(415, problem, "invalid_content_type")


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
