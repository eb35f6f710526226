"""A server that runs: in a thread, at a free port."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import pytest

from clover.api import Clover
from clover.engine import Scheduler, StepEvent
from clover.serve.app import Service
from clover.serve.options import ServerOptions
from clover.serve.run import listen, make_server, run_server

NAME = "tiny"


@dataclass
class Live:
    """A running server and how to reach it."""

    service: Service
    port: int
    server: Any
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers (names in lower case) and body."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
        """A JSON request whose answer is JSON."""
        content = {"Content-Type": "application/json", **headers}
        status, _, answer = self.send("POST", path, json.dumps(body).encode(), content)
        return status, json.loads(answer)

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a streamed answer, which must end by [DONE]."""
        status, headers, answer = self.send(
            "POST", path, json.dumps(body | {"stream": True}).encode(), {"Content-Type": "application/json"}
        )
        assert status == 200 and headers["content-type"].startswith("text/event-stream")
        *events, done, rest = answer.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def until_idle(self) -> None:
        """Wait until nothing runs or waits; fails after a while."""
        wait_for(lambda: self.service.worker.held == 0 and self.service.worker.idle)


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


@contextmanager
def engines_held() -> Iterator[None]:
    """While the block runs engines stand still at the end of a step: no long text ends before a test has looked."""
    go, step = threading.Event(), Scheduler.step

    def held(self: Scheduler) -> list[StepEvent]:
        events = step(self)
        go.wait(120)
        return events

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "step", held)
        try:
            yield
        finally:
            go.set()


@contextmanager
def serving(model: Clover, options: ServerOptions | None = None) -> Iterator[Live]:
    """Serve a model while the block runs."""
    service = Service(model, NAME, "recall", options := options or ServerOptions())
    server, taken = make_server(service), listen("127.0.0.1", 0, options.read_seconds)
    thread = threading.Thread(target=run_server, args=(server, service, taken))
    live = Live(service, taken.getsockname()[1], server, thread)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield live
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server does not stop"
