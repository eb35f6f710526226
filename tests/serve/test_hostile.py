"""Whatever is sent, the answer is no 5xx and no hang: by the server's own description of itself, and by hand."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, strategies
from schemathesis.generation import GenerationMode

from tests.serve.live import Live

PATHS = ("/v1/completions", "/v1/chat/completions")


def check_answer(status: int, content: bytes) -> None:
    """Fine, or 4xx with an error that says something, in OpenAI's form."""
    assert 200 <= status < 500, content
    if status >= 400:
        error = json.loads(content)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] and isinstance(error["message"], str)


def fuzz(live: Live, examples: int) -> None:
    """Send requests that the description allows, and that it does not, to every path of it."""
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {*PATHS, "/v1/models", "/health", "/metrics"}
    cases = [o.as_strategy(mode) for o in operations for mode in GenerationMode if o.path in PATHS]
    cases += [o.as_strategy() for o in operations if o.path not in PATHS]

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategies.one_of(cases))
    def send(case: Any) -> None:
        answer = case.call(base_url=live.url, timeout=60)
        check_answer(answer.status_code, answer.content)

    send()
    live.until_idle()


def test_what_the_description_allows_and_what_not(live: Live) -> None:
    fuzz(live, 30)


@pytest.mark.long
def test_a_thousand_of_them(live: Live) -> None:
    fuzz(live, 1500)


MALFORMED = {
    "empty": b"",
    "no JSON": b"{'prompt': 1}",
    "null": b"null",
    "a number": b"1",
    "bad UTF-8": b'{"prompt": "\xff\xfe"}',
    "a lone surrogate": b'{"prompt": "\\ud800"}',
    "a lone surrogate in a name": b'{"prompt": "a", "\\udfff": 1}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": 1e999}',
    "a huge integer": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "an integer beyond 64 bits": b'{"prompt": "a", "max_tokens": 99999999999999999999}',
    "deep nesting": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep nesting in what is refused": b'{"prompt": "a", "echo": ' + b"[" * 150 + b"]" * 150 + b"}",
    "true for a number": b'{"prompt": "a", "top_p": true}',
    "text for a number": b'{"prompt": "a", "n": "2"}',
    "an empty list": b'{"prompt": []}',
    "empty tokens": b'{"prompt": [[]]}',
    "a token outside the vocabulary": b'{"prompt": [1000000]}',
    "a mixed list": b'{"prompt": [1, "a"]}',
    "an empty stop string": b'{"prompt": "a", "stop": ""}',
    "a tiny temperature": b'{"prompt": "a", "temperature": 1e-300}',
    "a bias that is no token": b'{"prompt": "a", "logit_bias": {"x": 1}}',
    "a negative token": b'{"prompt": "a", "logit_bias": {"-1": 1}}',
    "n of nothing": b'{"prompt": "a", "n": 0}',
    "a long prompt": json.dumps({"prompt": "a" * 100_000}).encode(),
    "too many prompts": json.dumps({"prompt": ["a"] * 128, "n": 128}).encode(),
    "an unknown field": b'{"prompt": "a", "x": 1}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("path", PATHS)
def test_malformed_bodies_are_refused(live: Live, body: bytes, path: str) -> None:
    if path == PATHS[1]:
        body = body.replace(b'"prompt"', b'"messages"')
    status, _, answer = live.send("POST", path, body, {"Content-Type": "application/json"})
    check_answer(status, answer)
    assert 400 <= status < 500


@pytest.mark.parametrize(
    "said", ["text/plain", "application/jsonx", "multipart/form-data", "", "application/json; charset=x"]
)
def test_bodies_must_say_that_they_are_json(live: Live, said: str) -> None:
    status, _, answer = live.send(
        "POST", PATHS[0], b'{"prompt": "a", "max_tokens": 1}', {"Content-Type": said}
    )
    check_answer(status, answer)
    assert status == (200 if said.startswith("application/json;") else 415)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/", 405),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/app.py", 404),
        ("GET", "/%00", 404),
        ("GET", "/v1/models/" + "a" * 5000, 404),
        ("BREW", "/v1/models", 405),
    ],
)
def test_other_paths_and_methods_are_errors_in_the_same_form(
    live: Live, method: str, path: str, status: int
) -> None:
    found, _, answer = live.send(method, path)
    check_answer(found, answer)
    assert found == status


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/1.1 and more\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"a" * 200_000,
    ],
)
def test_what_is_no_http_is_answered_by_4xx(live: Live, sent: bytes) -> None:
    with live.connect() as connection:
        connection.sendall(sent)
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 4"), answer
