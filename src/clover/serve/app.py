"""The application: its parts, routes and errors. Responses are built from the steps of the engine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from clover import __version__
from clover.api import Clover
from clover.errors import UserError
from clover.serve.answers import Answer
from clover.serve.bodies import Body, ChatBody, CompletionBody
from clover.serve.errors import ApiError, invalid_body, no_model, to_api_error
from clover.serve.guard import Guard
from clover.serve.metrics import ServerMetrics
from clover.serve.options import ServerOptions
from clover.serve.parsing import RequestParser
from clover.serve.worker import Stream, TextStep, Worker
from clover.templates import render

_PAGE = Path(__file__).parent / "page"
T = TypeVar("T")


class Service:
    """A model, the worker that runs its engine, and what clients learn about it."""

    def __init__(self, model: Clover, name: str, draft: str | None, settings: ServerOptions):
        self.name, self.settings = name, settings
        self.tokenizer = model.target.require_tokenizer()
        self.metrics = ServerMetrics()
        self.worker = Worker(model.engine, settings, self.metrics)
        most_texts = settings.max_sequences + settings.max_waiting
        self.parser = RequestParser(model, name, settings.max_new_tokens, most_texts, settings.grammar)
        self.card: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "clover",
            "draft": draft,
            "max_model_len": model.target.longest_run,
            "max_new_tokens": settings.max_new_tokens,
            "chat": _tells_roles_apart(model),
        }


def make_app(service: Service) -> FastAPI:
    """Return the application of one server; it starts and stops the engine's thread."""

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
    app.add_middleware(
        Guard,
        api_key=settings.api_key,
        max_body_bytes=settings.max_body_bytes,
        read_seconds=settings.read_seconds,
    )
    _add_errors(app)
    _add_facts(app, service)
    _add_generation(app, service)
    # The page is not mounted, because a mount would answer instead of a route that has not this method.
    app.router.default = _PageFiles(directory=_PAGE, html=True)
    return app


class _PageFiles(StaticFiles):
    """The files of the page; for a missing file the answer is 404, whatever the method."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            await super().get_response(path, {**scope, "method": "GET"})  # raises 404 if there is no file
        return await super().get_response(path, scope)


def _add_errors(app: FastAPI) -> None:
    """Return every error in the form that clients know."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return invalid_body(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return to_api_error(error, request.method, request.scope["path"]).response()

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        return ApiError(500, "the server failed on this request", "internal_error").response()


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


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await _generate(service, body, request)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        return await _generate(service, body, request)


async def _generate(service: Service, body: Body, request: Request) -> Response:
    arrived = time.perf_counter()
    with service.worker.entering():
        loop = asyncio.get_running_loop()
        parsed = await loop.run_in_executor(service.parser.executor, service.parser.parse, body)
    answer = Answer(parsed, service.name, service.tokenizer)
    stream = service.worker.submit(parsed.requests, arrived)
    service.metrics.prompt.inc(parsed.prompt_tokens)
    if body.stream:
        return _EventStream(stream, answer)
    with closing(stream):
        found = await _unless_gone(request.receive, _whole(stream, answer))
    return Response(status_code=499) if found is None else JSONResponse(found)


async def _whole(stream: Stream, answer: Answer) -> dict[str, Any]:
    steps: list[TextStep] = []
    while new := await stream.next_steps():
        steps += new
    return answer.whole(steps)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`; if the client disconnects before, cancel it and return None."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        watching.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _EventStream(StreamingResponse):
    """A response of server-sent events. If its client disconnects, its texts are cancelled."""

    media_type = "text/event-stream"

    def __init__(self, stream: Stream, answer: Answer):
        super().__init__(
            _events(stream, answer), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing(self._stream):  # also if the client has gone before the first event
            await super().__call__(scope, receive, send)


async def _events(stream: Stream, answer: Answer) -> AsyncIterator[bytes]:
    try:
        yield _encode(answer.opening())
        while steps := await stream.next_steps():
            yield _encode([chunk for step in steps if (chunk := answer.chunk(step))])
        yield _encode(answer.closing())
    except ApiError as error:
        yield _encode([error.to_dict()])
    yield b"data: [DONE]\n\n"


def _encode(events: list[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def _tells_roles_apart(model: Clover) -> bool:
    """Return True if a chat template works and does more than join messages; then the page offers chat."""
    tokenizer, question = model.target.require_tokenizer(), [{"role": "user", "content": "?"}]
    if not getattr(tokenizer, "chat_template", None):
        return False
    try:
        model.find_format(question)
        return render(tokenizer, question, answer=True) != "?"
    except UserError:
        return False
