"""A connection that waits for nobody for ever: deadlines for reading a request and for writing a response."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from clover.serve.errors import ApiError

_READING = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request is not whole


class Connection(H11Protocol):
    """uvicorn's connection, which is closed if a request has not come whole, headers and body, in `read_seconds`, or
    if the client takes nothing of a response for `write_seconds`.
    """

    read_seconds = 30.0
    write_seconds = 30.0
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reading = self.loop.call_later(self.read_seconds, self._not_read)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_reading(_READING)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A body may have begun behind the request that was answered; for headers there is uvicorn's own deadline.
        self._watch_reading((h11.SEND_BODY,))

    def _watch_reading(self, states: tuple[type, ...]) -> None:
        """Set the deadline in these states, unless it is set, and take it back where a request is whole."""
        if self.conn.their_state in states and self._reading is None:
            self._reading = self.loop.call_later(self.read_seconds, self._not_read)
        elif self.conn.their_state not in _READING and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _not_read(self) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            error = ApiError(408, f"the request did not come whole within {self.read_seconds:g} s", "timeout")
            body = json.dumps(error.to_dict()).encode()
            head = f"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            self.transport.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # What the client has not taken of the last response may hold the closed connection open.
        self._writing = self.loop.call_later(self.write_seconds, self.transport.abort)
