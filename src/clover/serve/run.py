"""Run the server until SIGINT or SIGTERM; then running requests have some time to finish.

The engine runs in the calling thread, which loaded the model. The event loop has its own thread.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from threading import Thread
from types import FrameType

import uvicorn

from clover.api import Clover
from clover.errors import UserError, one_line
from clover.serve.app import Service, make_app
from clover.serve.options import ServerOptions

_FAREWELL_SECONDS = 1.0  # time for clients to read their last answer


def listen(host: str, port: int, write_seconds: float) -> socket.socket:
    """Bind an address, before the model is loaded; UserError if that fails. Port 0 is any free port.

    On Linux the system closes connections whose client reads nothing for `write_seconds`.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        taken = socket.socket(family)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * write_seconds))
        taken.bind((host, port))
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot listen at {host}:{port}: {one_line(error)}") from error
    return taken


class Server(uvicorn.Server):
    """uvicorn's server, but a stop answers requests that still run with an error, where uvicorn logs a traceback.

    Attributes:
        impatient: whether to stop without waiting for running requests.
    """

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service, self.impatient = service, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second signal, of either kind, stops without waiting."""
        self.impatient = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, and return when all have ended."""
        ending = asyncio.create_task(self._end_requests())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_requests(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._service.settings.stop_seconds
        while not self.impatient and loop.time() < end:
            await asyncio.sleep(0.05)
        self._service.worker.refuse_all()
        await asyncio.sleep(_FAREWELL_SECONDS)
        for connection in list(self.server_state.connections):  # their clients do not send, or do not read
            connection.transport.abort()


def make_server(service: Service) -> Server:
    """Return the server of a service, for `run_server`."""
    settings = service.settings
    config = uvicorn.Config(
        make_app(service),
        http="h11",
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=settings.max_connections + 1,  # because uvicorn counts the new connection, too
    )
    return Server(config, service)


def run_server(server: Server, service: Service, taken: socket.socket) -> None:
    """Serve until the server's `should_exit` is set; the calling thread becomes the engine's."""

    def answer() -> None:
        try:
            server.run(sockets=[taken])
        finally:
            service.worker.end()

    loop = Thread(target=answer, name="clover-http")
    loop.start()
    try:
        service.worker.run()
    finally:
        server.should_exit = server.impatient = True  # without the engine no request can finish
        loop.join()


def serve(
    model: Clover,
    name: str,
    draft: str | None,
    options: ServerOptions,
    taken: socket.socket,
    ready: Callable[[str], None],
) -> None:
    """Serve a model until SIGINT or SIGTERM; a second signal ends running requests, too.

    Args:
        name, draft: the clients' names for the target and the draft; None for no draft.
        taken: the socket that `listen` returned.
        ready: called with the address.
    """
    service = Service(model, name, draft, options)
    server = make_server(service)
    taken.listen()
    host, port = taken.getsockname()[:2]
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        run_server(server, service, taken)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
