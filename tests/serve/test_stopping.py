"""A server that is stopped: who is waited for, and what the others are told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clover.api import Clover
from clover.serve.options import ServerOptions
from tests.serve.live import Live, engines_held, serving, wait_for

LONG = {"prompt": "abc", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
ERROR = {
    "message": "the server is stopping",
    "type": "server_error",
    "param": None,
    "code": "stopping",
}


def test_a_stop_lets_running_requests_end_and_takes_no_new_ones(tiny_model: Clover) -> None:
    with serving(tiny_model) as live:
        found: list[Any] = []
        running = threading.Thread(target=lambda: found.append(live.events("/v1/completions", LONG)))
        with engines_held():
            running.start()
            wait_for(lambda: live.service.worker.running == 1)
            live.server.should_exit = True
        running.join(60)
        [events] = found
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        live.thread.join(30)
        with pytest.raises(ConnectionRefusedError):
            live.connect()


def stop_twice(live: Live) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        live.server.handle_exit(number, None)


def stop_once(live: Live) -> None:
    live.server.handle_exit(signal.SIGTERM, None)


@pytest.mark.parametrize(
    ("stop", "options"),
    [(stop_twice, ServerOptions()), (stop_once, ServerOptions(stop_seconds=0))],
    ids=["a second signal", "the end of stop_seconds"],
)
def test_who_is_not_waited_for_is_told_so(
    tiny_model: Clover, stop: Callable[[Live], None], options: ServerOptions, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tiny_model, options) as live, ThreadPoolExecutor(2) as pool, engines_held():
        whole = pool.submit(live.post, "/v1/completions", LONG)
        streamed = pool.submit(live.events, "/v1/completions", LONG)
        wait_for(lambda: live.service.worker.held == 2)
        stop(live)
        assert whole.result(60) == (503, {"error": ERROR})
        assert streamed.result(60)[-1] == {"error": ERROR}
    live.thread.join(30)
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]


def test_prompts_that_are_still_being_read_are_not_run(tiny_model: Clover) -> None:
    hold = threading.Event()
    with serving(tiny_model) as live, ThreadPoolExecutor(1) as pool:
        live.service.parser.executor.submit(hold.wait, 60)
        try:
            found = pool.submit(live.post, "/v1/completions", LONG)
            wait_for(lambda: live.service.worker.held == 1)
            live.service.worker.refuse_all()
        finally:
            hold.set()
        assert found.result(60) == (503, {"error": ERROR})


def test_a_client_that_does_not_send_on_is_cut_off(
    tiny_model: Clover, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with serving(tiny_model, ServerOptions(read_seconds=600)) as live, live.connect() as client:
        client.sendall(head + b"Content-Length: 9\r\n\r\n{")
        wait_for(lambda: live.server.server_state.tasks)
        stop_twice(live)
        live.thread.join(60)
        assert not live.thread.is_alive()
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]
