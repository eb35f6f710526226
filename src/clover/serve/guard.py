"""What every request passes before the application: the key, the size of the body, headers for browsers."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clover.serve.errors import ApiError

_CLOSE = {"Connection": "close"}  # what is left of the body is not read
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
        api_key: what /v1 and /metrics want to hear; None for no key.
        max_body_bytes: of a request.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, max_body_bytes: int):
        self._app, self._most = app, max_body_bytes
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
            given = headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self._expected):
                challenge = {"WWW-Authenticate": "Bearer", **_CLOSE}
                message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
                return ApiError(401, message, "invalid_api_key", headers=challenge)
        size = headers.get("content-length", "")
        return self._too_large() if size.isdecimal() and int(size[:20]) > self._most else None

    def _too_large(self) -> ApiError:
        message = f"the body is larger than {self._most} bytes"
        return ApiError(413, message, "body_too_large", headers=_CLOSE)

    def _bounded(self, receive: Receive) -> Receive:
        """The same, but for ApiError where the body grows too large."""
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise self._too_large()
            return message

        return bounded


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
