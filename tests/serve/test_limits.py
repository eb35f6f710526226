"""What a server does not put up with: wrong keys, bodies too large or too slow, too many requests, and clients that
vanish.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from clover.api import Clover
from clover.cache import KVCache
from clover.engine import Request
from clover.engine.batch import Batch
from clover.engine.prefixes import StoredText
from clover.engine.sequences import RunningSequence
from clover.serve.answers import Answer
from clover.serve.errors import ApiError
from clover.serve.options import ServerOptions
from clover.serve.worker import Stream, TextStep
from tests.serve.live import Live, engines_held, serving, wait_for

KEY = "sésame"
BODY = {"prompt": "abc", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
LONG = BODY | {"max_tokens": 100}
JSON = {"Content-Type": "application/json"}


def test_a_chat_is_answered_up_to_the_end_of_a_window(
    tiny_model: Clover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat without max_tokens asks for all that the target can run, which is less than its context."""
    monkeypatch.setattr(type(tiny_model.target), "longest_run", 60)
    with serving(tiny_model) as server:
        body = {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True}
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200, answer
        assert answer["usage"]["total_tokens"] == 60
        assert answer["choices"][0]["finish_reason"] == "length"
        assert server.service.card["max_model_len"] == 60


@pytest.fixture(scope="module")
def strict(tiny_model: Clover) -> Iterator[Live]:
    """A server with a key, and small limits."""
    options = ServerOptions(
        api_key=KEY, max_sequences=2, max_waiting=2, max_new_tokens=110, max_body_bytes=2000, read_seconds=0.5
    )
    with serving(tiny_model, options) as server:
        yield server


def allowed(key: str = KEY) -> dict[str, str]:
    return JSON | {"Authorization": f"Bearer {key}".encode().decode("latin-1")}


def post(live: Live, body: dict[str, Any], path: str = "/v1/completions") -> tuple[int, dict[str, str], Any]:
    status, headers, answer = live.send("POST", path, json.dumps(body).encode(), allowed())
    return status, headers, json.loads(answer)


def written(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    """A request as it goes over the wire."""
    said = json.dumps(body).encode()
    headers = "".join(f"{name}: {value}\r\n" for name, value in allowed().items())
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(said)}\r\n\r\n"
    return head.encode("latin-1") + said


def streaming(live: Live, body: dict[str, Any]) -> socket.socket:
    """A stream that has begun."""
    connection = live.connect()
    connection.sendall(written(body | {"stream": True}))
    assert b" 200 " in connection.recv(300)
    return connection


def refused(live: Live) -> float:
    metrics = live.send("GET", "/metrics", headers=allowed())[2].decode()
    [line] = [line for line in metrics.splitlines() if line.startswith("clover_requests_refused_total ")]
    return float(line.split()[1])


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def read_until_done(stream: socket.socket) -> None:
    found = b""
    while b"[DONE]" not in found:
        part = stream.recv(65536)
        assert part, found[-200:]
        found += part


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY.encode().decode("latin-1")}]
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/completions", "/v1/nothing"])
def test_a_wrong_key_is_401(strict: Live, headers: dict[str, str], path: str) -> None:
    status, told, answer = strict.send("GET", path, headers=headers)
    assert (status, told["www-authenticate"]) == (401, "Bearer")
    assert json.loads(answer)["error"]["code"] == "invalid_api_key"


def test_the_right_key_is_let_in_and_health_and_the_page_need_none(strict: Live) -> None:
    assert strict.send("GET", "/v1/models", headers=allowed())[0] == 200
    assert strict.send("GET", "/metrics", headers=allowed())[0] == 200
    assert post(strict, BODY)[0] == 200
    assert strict.send("GET", "/health")[::2] == (200, b'{"status":"ok"}')
    status, headers, page = strict.send("GET", "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8") and b"<html" in page
    assert "default-src 'none'" in headers["content-security-policy"]


def test_a_body_that_is_too_large_is_cut_off(strict: Live) -> None:
    status, headers, answer = strict.send("POST", "/v1/completions", b"x" * 2001, allowed())
    assert (status, headers["connection"]) == (413, "close")
    assert json.loads(answer)["error"]["code"] == "body_too_large"


def test_a_body_without_a_length_is_cut_off_too(strict: Live) -> None:
    with strict.connect() as connection:
        headers = "".join(f"{name}: {value}\r\n" for name, value in allowed().items())
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{headers}Transfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode("latin-1"))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(1000):
                connection.sendall(b"100\r\n" + b"x" * 256 + b"\r\n")
                time.sleep(0.01)


def test_a_body_that_drips_is_not_waited_for(strict: Live) -> None:
    with strict.connect() as connection:
        headers = "".join(f"{name}: {value}\r\n" for name, value in allowed().items())
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 1000\r\n\r\n"
        connection.sendall(head.encode("latin-1"))
        started = time.monotonic()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(1000):
                connection.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - started < 30


def test_a_body_that_stops_behind_another_request_is_not_waited_for(strict: Live) -> None:
    with strict.connect() as connection:
        connection.sendall(written(BODY) + written(BODY)[:-3])
        answers = read_all(connection)
    assert answers.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 408" in answers


def test_requests_in_one_packet_are_answered_one_after_the_other(strict: Live) -> None:
    with strict.connect() as connection:
        connection.sendall(
            written(BODY) * 3 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        answers = read_all(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == 4 and answers.endswith(b'{"status":"ok"}')


def test_clients_that_leave_in_the_middle_of_a_body_are_no_error(
    strict: Live, caplog: pytest.LogCaptureFixture
) -> None:
    for sent in (written(BODY)[:-3], written(BODY) + written(BODY)[:-3]):
        with strict.connect() as connection:
            connection.sendall(sent)
            time.sleep(0.1)
    wait_for(lambda: not strict.server.server_state.connections)
    wait_for(lambda: not strict.server.server_state.tasks)
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]


def test_prompts_that_are_being_read_count_as_waiting(strict: Live) -> None:
    hold = threading.Event()
    strict.service.parser.executor.submit(hold.wait, 60)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(post, strict, BODY) for _ in range(4)]
        try:
            wait_for(lambda: strict.service.worker.held == 4)
            assert post(strict, BODY)[0] == 429
        finally:
            hold.set()
        assert [one.result()[0] for one in found] == [200] * 4


def test_a_full_queue_is_429_and_others_go_on(strict: Live) -> None:
    before = refused(strict)
    with engines_held():
        streams = [streaming(strict, LONG) for _ in range(4)]
        status, headers, answer = post(strict, BODY)
    assert status == 429 and 1 <= int(headers["retry-after"]) <= 60
    assert answer["error"]["type"] == "rate_limit_error"
    for stream in streams:
        stream.settimeout(60)
        read_until_done(stream)
        stream.close()
    assert post(strict, BODY)[0] == 200
    assert refused(strict) == before + 1


def test_limits_of_one_request(strict: Live) -> None:
    assert post(strict, BODY | {"n": 5})[2]["error"]["param"] == "n"
    assert "at most 110" in post(strict, BODY | {"max_tokens": 111})[2]["error"]["message"]


def test_clients_that_vanish_leave_nothing_behind(strict: Live) -> None:
    for _ in range(3):
        streams = [streaming(strict, LONG) for _ in range(4)]  # two run, two wait
        for stream in streams:
            stream.close()
        strict.until_idle()
    with engines_held(), strict.connect() as connection:  # one that does not stream, and goes
        connection.sendall(written(LONG))
        wait_for(lambda: strict.service.worker.held == 1)
    strict.until_idle()
    metrics = strict.send("GET", "/metrics", headers=allowed())[2]
    assert b"clover_num_requests_running 0.0" in metrics and b"clover_num_requests_waiting 0.0" in metrics


@pytest.mark.long
def test_a_thousand_clients_that_vanish_leave_no_work_memory_or_cache_behind(tiny_model: Clover) -> None:
    rng, asked = Random(0), ("/v1/completions", "/v1/chat/completions")
    with serving(tiny_model, ServerOptions(max_sequences=8, max_waiting=300)) as live:

        def vanish(number: int) -> None:
            path, body = asked[number % 2], LONG | {"stream": number % 3 > 0, "speculation": number % 5 > 0}
            if number % 2:
                body = {name: value for name, value in body.items() if name != "prompt"}
                body |= {"messages": [{"role": "user", "content": "abc"}]}
            with live.connect() as connection:
                whole = written(body, path)
                connection.sendall(whole[: len(whole) - (number % 7 == 0) * 9])
                time.sleep(rng.random() * 0.3)

        def left() -> dict[str, int]:
            wait_for(lambda: not live.server.server_state.connections)
            live.until_idle()
            gc.collect()
            kinds = (Stream, Answer, KVCache, Batch, RunningSequence, StoredText)
            return dict(Counter(type(one).__name__ for one in gc.get_objects() if type(one) in kinds))

        before = left()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(vanish, range(200)))
            settled = memory_mib()
            list(pool.map(vanish, range(200, 1000)))
        wait_for(lambda: left() == before)  # a thread may be just leaving the function that held the last one
        assert memory_mib() - settled < 64
        assert live.post("/v1/completions", BODY)[0] == 200


def memory_mib() -> float:
    """What this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def test_a_client_that_does_not_read_stalls_nobody_and_is_cut_off(tiny_model: Clover) -> None:
    options = ServerOptions(read_seconds=0.5, max_sequences=4)
    with serving(tiny_model, options) as live:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.connect(("127.0.0.1", live.port))
        # Trees and log-probabilities make answers that no buffer on the way holds.
        options = {"include_speculation": True}
        body = {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True, "logprobs": True, "n": 4}
        said = json.dumps(body | {"top_logprobs": 20, "stream": True, "stream_options": options}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for _ in range(8):
            deaf.sendall(f"{head}Content-Length: {len(said)}\r\n\r\n".encode() + said)
        assert live.post("/v1/completions", BODY)[0] == 200
        wait_for(lambda: not live.server.server_state.connections)
        live.until_idle()
        deaf.close()


def test_one_connection_is_one(tiny_model: Clover) -> None:
    with serving(tiny_model, ServerOptions(max_connections=1)) as live:
        assert live.send("GET", "/health")[0] == 200
        with socket.create_connection(("127.0.0.1", live.port)):
            wait_for(lambda: len(live.server.server_state.connections) == 1)
            assert live.send("GET", "/health")[0] == 503


def test_a_request_that_takes_too_long_is_ended(tiny_model: Clover) -> None:
    with serving(tiny_model, ServerOptions(request_seconds=0.005)) as live:
        status, answer = live.post("/v1/completions", LONG)
        assert (status, answer["error"]["code"]) == (408, "timeout")
        *_, last = live.events("/v1/completions", LONG)
        assert last["error"]["code"] == "timeout"
        live.until_idle()


def test_a_text_that_has_ended_is_told_though_its_time_is_over() -> None:
    ended: Any = TextStep(0, SimpleNamespace(generation=object()), 0.0)  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(release=lambda jobs: None)

    async def read() -> list[list[TextStep]]:
        stream = Stream(worker, [Request((1,), 1)], 60.0, time.perf_counter())
        stream.put(ended)
        stream.fail(ApiError(408, "it took longer than 60 s", "timeout"))
        return [await stream.next_steps(), await stream.next_steps()]

    assert asyncio.run(read()) == [[ended], []]
