"""Listen, serve, and stop when asked to: on SIGINT or SIGTERM running requests are finished first."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import uvicorn

from clover.api import Clover
from clover.errors import UserError, one_line
from clover.serve.app import make_app
from clover.serve.connection import Connection
from clover.serve.options import ServerOptions
from clover.serve.service import Service


def listen(host: str, port: int) -> socket.socket:
    """Take an address, before anything is loaded; UserError if it cannot be had. Port 0 is any free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        taken = socket.socket(family)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except OSError as error:
        raise UserError(f"cannot listen at {host}:{port}: {one_line(error)}") from error
    return taken


def make_server(service: Service) -> uvicorn.Server:
    """The server; `run(sockets=[…])` serves until its `should_exit` is set."""
    settings = service.settings

    class Deadlined(Connection):
        read_seconds = write_seconds = settings.read_seconds

    config = uvicorn.Config(
        make_app(service),
        http=Deadlined,
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=settings.max_connections,
        timeout_graceful_shutdown=settings.stop_seconds,
    )
    return uvicorn.Server(config)


def run(
    model: Clover,
    name: str,
    draft: str | None,
    options: ServerOptions,
    taken: socket.socket,
    ready: Callable[[str], None],
) -> None:
    """Serve a model until SIGINT or SIGTERM; a second one ends it at once.

    Args:
        name, draft: what clients call the target and the draft; None for no draft.
        taken: what `listen` returned.
        ready: is told the address.
    """
    server = make_server(Service(model, name, draft, options))
    taken.listen()
    host, port = taken.getsockname()[:2]
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    # uvicorn raises the signals again that ended it: by then there is nothing left to do.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[taken])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
