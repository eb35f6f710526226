"""Whatever is sent, the answer is no 5xx and no hang: by the server's own description of itself, and by hand."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, strategies
from pydantic import ValidationError
from schemathesis.generation import GenerationMode

from clover.api import Clover
from clover.serve.bodies import ChatBody, CompletionBody
from clover.validation import describe_problem
from tests.serve.live import Live

PATHS = ("/v1/completions", "/v1/chat/completions")


def check_answer(status: int, content: bytes) -> None:
    """Fine, or 4xx with an error that says something, in OpenAI's form."""
    assert 200 <= status < 500, content
    if status >= 400:
        error = json.loads(content)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] and isinstance(error["message"], str)


def fuzz(
    live: Live, examples: int, modes: Iterable[GenerationMode] = GenerationMode
) -> Counter[tuple[str, int]]:
    """Send requests that the description allows, and that it does not, to every path of it; how many of either kind
    got which status.
    """
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {*PATHS, "/v1/models", "/health", "/metrics"}
    cases = [o.as_strategy(mode) for o in operations for mode in modes if o.path in PATHS]
    cases += [o.as_strategy() for o in operations if o.path not in PATHS and GenerationMode.POSITIVE in modes]
    found = Counter[tuple[str, int]]()

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
        malformed = case.meta.generation.mode is GenerationMode.NEGATIVE
        found["malformed" if malformed else "sound", answer.status_code] += 1
        assert not malformed or 400 <= answer.status_code < 500, case.as_curl_command()

    send()
    live.until_idle()
    return found


def test_what_the_description_allows_and_what_not(live: Live) -> None:
    fuzz(live, 12)


@pytest.mark.long
def test_a_thousand_malformed_requests_are_refused(live: Live) -> None:
    found = fuzz(live, 1100, [GenerationMode.NEGATIVE])
    assert sum(found.values()) >= 1000 and {kind for kind, _ in found} == {"malformed"}
    assert live.post(PATHS[0], {"prompt": "a", "max_tokens": 1})[0] == 200


@pytest.mark.long
def test_two_hundred_and_fifty_sound_requests(live: Live) -> None:
    found = fuzz(live, 250, [GenerationMode.POSITIVE])
    assert found["sound", 200] > 25 and {kind for kind, _ in found} == {"sound"}


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
    "a prompt that is nearly too long": json.dumps({"prompt": "a" * 200}).encode(),
    "a long prompt": json.dumps({"prompt": "a" * 100_000}).encode(),
    "too many prompts": json.dumps({"prompt": ["a"] * 128, "n": 128}).encode(),
    "an unknown field": b'{"prompt": "a", "x": 1}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("path", PATHS)
def test_malformed_bodies_are_refused(live: Live, body: bytes, path: str) -> None:
    if path == PATHS[1]:
        body = body.replace(b'"prompt": "a"', b'"messages": [{"role": "user", "content": "a"}]')
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


def test_a_compressed_body_is_refused(live: Live) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    status, _, answer = live.send("POST", PATHS[0], gzip.compress(b'{"prompt": "a"}'), headers)
    check_answer(status, answer)
    assert status == 415 and b"compressed" in answer


@pytest.mark.parametrize(
    ("path", "field", "prompt", "length"),
    [
        (PATHS[0], "prompt", "a" * 100_000, "100000 characters"),
        (PATHS[1], "messages", [{"role": "user", "content": "a" * 100_000}], "100000 characters"),
        (PATHS[1], "messages", [{"role": "user", "content": ""}] * 129, "129 messages"),
    ],
)
def test_a_prompt_that_no_context_holds_is_not_even_tokenized(
    live: Live, path: str, field: str, prompt: Any, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clover, "encode", lambda *_: pytest.fail("it was tokenized"))
    status, answer = live.post(path, {field: prompt})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert f"the context is 128 tokens; the {length} of the prompt" in answer["error"]["message"]
    assert answer["error"]["param"] == field


def test_who_asks_at_the_wrong_place_is_told_the_right_one(live: Live) -> None:
    status, answer = live.post("/chat/completions", {"messages": []})
    assert status == 404 and "the API is at /v1/completions and /v1/chat" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("POST", "/v1/completions/", 404),
        ("POST", "/%00", 404),
        ("POST", "/", 405),
        ("POST", "/app.js", 405),
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


@pytest.mark.parametrize(
    ("kind", "field", "item"),
    [
        (CompletionBody, "prompt", "-1"),
        (CompletionBody, "prompt", "[-1]"),
        (CompletionBody, "prompt", "{}"),
        (ChatBody, "messages", "{}"),
        (ChatBody, "messages", '{"role": "user", "content": [{}]}'),
        (ChatBody, "modalities", "0"),
    ],
)
def test_of_many_wrong_items_one_is_enough(kind: type[ChatBody], field: str, item: str) -> None:
    with pytest.raises(ValidationError) as found:
        kind.model_validate_json(f'{{"messages": [], "{field}": [{",".join([item] * 10_000)}]}}')
    assert found.value.error_count() < 10
    assert describe_problem(found.value.errors()).field == field


def test_of_many_unknown_fields_one_is_enough() -> None:
    unknown = ", ".join(f'"x{number}": 1' for number in range(10_000))
    with pytest.raises(ValidationError) as found:
        CompletionBody.model_validate_json(f'{{"prompt": "a", {unknown}}}')
    assert found.value.error_count() == 1
    problem = describe_problem(found.value.errors())
    assert (problem.field, problem.message) == ("x0", "x0 is unknown; leave it out")


def test_null_asks_for_nothing_in_any_field() -> None:
    known = {"prompt": "a", "logit_bias": {"5": 1.5}, "stop": None, "ignore_eos": None}
    body = CompletionBody.model_validate_json(json.dumps(known | {"moderation": None}))
    assert body.logit_bias == {5: 1.5} and not body.ignore_eos
    for wrong in ({"moderation": True}, {"moderation": 0}, {"prompt": None}):
        with pytest.raises(ValidationError):
            CompletionBody.model_validate_json(json.dumps(known | wrong))
