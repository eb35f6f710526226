"""The application: routes, and how the steps of the engine become responses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from clover import __version__
from clover.serve.answers import Answer
from clover.serve.bodies import Body, ChatBody, CompletionBody
from clover.serve.errors import ApiError, no_model, printable, unreadable
from clover.serve.guard import Guard
from clover.serve.service import Service
from clover.serve.worker import Step, Stream

_PAGE = Path(__file__).parent / "page"
_BODIES = {"/v1/completions": CompletionBody, "/v1/chat/completions": ChatBody}
T = TypeVar("T")


def make_app(service: Service) -> FastAPI:
    """The application of one server; it starts and stops the engine's thread."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await service.worker.stop()

    app = FastAPI(
        title="Clover",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    settings = service.settings
    app.add_middleware(Guard, api_key=settings.api_key, max_body_bytes=settings.max_body_bytes)
    _add_errors(app)
    _add_facts(app, service)
    for path, kind in _BODIES.items():
        reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
        said = {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}
        app.post(path, openapi_extra=said)(_generation(service, kind))
    # Not mounted: a mount would answer for what has a route, but not for this method.
    app.router.default = _PageFiles(directory=_PAGE, html=True)
    _describe(app)
    return app


class _PageFiles(StaticFiles):
    """The files of the page; where there is none the answer is 404, whatever the method."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            await super().get_response(path, {**scope, "method": "GET"})  # raises 404 where there is none
        return await super().get_response(path, scope)


def _add_errors(app: FastAPI) -> None:
    """Give every error the form that clients know."""

    @app.exception_handler(ApiError)
    async def told(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        message = error.detail
        if error.status_code in (404, 405):
            asked = printable(f"{request.method} {request.scope['path']}", 100)
            message = f"there is no {asked} here; the API is at {' and '.join(_BODIES)}"
        return ApiError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        return ApiError(500, "the server failed at this request", "internal_error").response()


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.card]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != service.name:
            raise no_model(service.name)
        return service.card


def _generation(service: Service, kind: type[Body]) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a request that generates text."""

    async def generate(request: Request) -> Response:
        arrived = time.perf_counter()
        service.worker.check_room()  # before a body is read that nobody has time for
        body = await _read(request, kind)
        with service.worker.entering():
            loop = asyncio.get_running_loop()
            asked = await loop.run_in_executor(service.asking.executor, service.asking.read, body)
        answer = Answer(asked, service.name, service.tokenizer)
        stream = service.worker.submit(asked.requests, body.speculation is not False, arrived)
        if body.stream:
            return EventStream(stream, answer)
        with closing(stream):
            found = await _unless_gone(request.receive, _whole(stream, answer))
        return Response(status_code=499) if found is None else JSONResponse(found)

    return generate


async def _read(request: Request, kind: type[Body]) -> Body:
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/json":
        raise ApiError(
            415, "the body must be JSON; send Content-Type: application/json", "invalid_content_type"
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(
            415, "compressed bodies are not read; leave out Content-Encoding", "invalid_content_type"
        )
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise unreadable(error) from error


async def _whole(stream: Stream, answer: Answer) -> dict[str, Any]:
    steps: list[Step] = []
    while new := await stream.take():
        steps += new
    return answer.whole(steps)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gives; None, and the work is cancelled, once the client has gone."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        watching.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events, which ends the work when its client goes."""

    media_type = "text/event-stream"

    def __init__(self, stream: Stream, answer: Answer):
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._stream, self._answer = stream, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing(self._stream):
            await _unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await _send_events(send, self._answer.opening())
            while steps := await self._stream.take():
                await _send_events(send, [chunk for step in steps if (chunk := self._answer.chunk(step))])
            await _send_events(send, self._answer.closing())
        except ApiError as error:
            await _send_events(send, [error.to_dict()])
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _send_events(send: Send, events: list[dict[str, Any]]) -> None:
    if events:
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        await send({"type": "http.response.body", "body": body, "more_body": True})


def _describe(app: FastAPI) -> None:
    """Add the schemas of the bodies, which the routes read themselves, to the OpenAPI description."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        template = "#/components/schemas/{model}"
        _, parts = models_json_schema(
            [(kind, "validation") for kind in _BODIES.values()], ref_template=template
        )
        schema.setdefault("components", {}).setdefault("schemas", {}).update(parts["$defs"])
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
