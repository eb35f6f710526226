"""Audits of servers: our own, and one that is broken in the way a test wants it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

import clover
from clover.audit.server import Endpoint
from clover.audit.texts import Case
from clover.serve.options import ServerOptions
from tests.serve.live import serving
from tests.tiny import save_tiny_pair

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "in", "mat", "hat", "red", "big"]
Change = Callable[[dict[str, Any], list[str]], list[str]]


def words_of(body: dict[str, Any], noise: float = 0.0) -> tuple[list[str], list[dict[str, float]]]:
    """A small language model: what follows depends on the text so far and, when sampled, on the seed.

    `noise` moves its logits as rounding does: otherwise with speculation, and where the text so far is the prompt.
    """
    text, tokens, tops = body["prompt"], [], []
    for at in range(body["max_tokens"]):
        rng, jitter = Random(text), Random(f"{speculative(body)} {body['prompt']} {text}")
        logits = [rng.gauss(0, 2) + jitter.gauss(0, noise) for _ in WORDS]
        draw = Random(f"{body.get('seed')} {at}" if "seed" in body else None)
        shift = [draw.expovariate(1) and body["temperature"] * -_log(draw.expovariate(1)) for _ in WORDS]
        scores = [own + extra for own, extra in zip(logits, shift)]
        best = max(range(len(WORDS)), key=scores.__getitem__)
        total = _log(sum(2.718281828**one for one in logits))
        ranked = sorted(range(len(WORDS)), key=lambda word: -logits[word])[:8]
        tops.append({" " + WORDS[word]: logits[word] - total for word in {*ranked, best}})
        tokens.append(" " + WORDS[best])
        text += tokens[-1]
    return tokens, tops


def _log(value: float) -> float:
    from math import log

    return log(value)


@contextmanager
def fake(
    change: Change = lambda body, tokens: tokens,
    speculates: bool = True,
    noise: float = 0.0,
    tell: float | None = None,
) -> Iterator[str]:
    """A server that writes `change` of what its model says, and tells one log-probability of all; the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"data": [{"id": "fake"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers.get("Authorization") == "Bearer wrong":
                return self.answer(401, {"error": "wrong key"})
            tokens, tops = words_of(body, noise)
            tokens = change(body, tokens)
            own = [top.get(token, -20.0) if tell is None else tell for token, top in zip(tokens, tops)]
            logprobs = {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops}
            rate = 0.5 if body.get("speculation", True) else None
            told = {"speculative_decoding": {"draft_acceptance_rate": rate}} if speculates else {}
            self.answer(200, {"choices": [{"text": "".join(tokens), "logprobs": logprobs}]} | told)

        def answer(self, code: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps({"prompts": ["Once there was", "Two dogs and", "In the house"]}))
    return file


def audit(run_clover: Callable, prompts: Path, url: str, *more: object) -> tuple[int, dict[str, Any], str]:
    found = prompts.with_name("found.json")
    found.unlink(missing_ok=True)
    done = run_clover(
        "audit", "--server", url, "--prompts", prompts, "--json", found, "--max-new-tokens", 12, *more
    )
    return done.code, json.loads(found.read_text()) if found.exists() else {}, done.out + done.err


def test_a_server_that_changes_nothing_is_clean(run_clover: Callable, prompts: Path) -> None:
    with fake() as url:
        code, found, _ = audit(run_clover, prompts, url)
        assert (code, found["verdict"], found["mismatches"]) == (0, "clean", 0)
        assert found["tokens"] == 2 * 2 * 4 * 12
    with fake(speculates=False) as url, fake(speculates=False) as other:
        code, found, _ = audit(run_clover, prompts, url, "--plain-server", other, "--max-prompts", 2)
        assert (code, found["verdict"]) == (0, "clean")
        assert 1e-4 < found["sampled_p_value"] <= 1


@pytest.mark.parametrize("told", [-9999.0, float("nan")])
def test_log_probabilities_that_are_no_finite_numbers_are_a_defect(
    run_clover: Callable, prompts: Path, told: float
) -> None:
    with fake(tell=told) as url:
        code, _, said = audit(run_clover, prompts, url)
    assert code == 1 and "tokens are not finite" in said


def test_one_prompt_fills_every_batch_and_tests_every_processor(run_clover: Callable, prompts: Path) -> None:
    seen: list[dict[str, Any]] = []

    def remember(body: dict[str, Any], tokens: list[str]) -> list[str]:
        seen.extend([body] if speculative(body) else [])
        return tokens

    with fake(remember) as url:
        few = (url, "--max-prompts", 1, "--batch-size")
        assert audit(run_clover, prompts, *few, 2)[1]["tokens"] == (2 + 3) * 12
        assert {name for body in seen for name in body} >= {"top_p", "frequency_penalty"}
        seen.clear()
        code, found, said = audit(run_clover, prompts, *few, 8)
    assert (code, found["tokens"]) == (0, 2 * 8 * 12) and "1 prompt," in said
    assert [body["prompt"] for body in seen] == ["Once there was"] * 16
    assert {body["seed"] for body in seen if body["temperature"]} == set(range(8))


def test_swapped_near_ties_are_clean(run_clover: Callable, prompts: Path) -> None:
    """Rounding moves logits by 0.1 here, and some are nearer to each other than that."""
    with fake(noise=0.1) as url:
        code, found, _ = audit(run_clover, prompts, url, "--temperature", 0)
    assert (code, found["verdict"], found["defects"]) == (0, "clean", 0)
    assert found["near_ties"] > 0
    differences = [one for method in found["methods"] for one in method["mismatches"]]
    assert all(0 < one["gap"] < 1 for one in differences) and found["rounding"]["pair"] > 0.01


def second_best(body: dict[str, Any], tokens: list[str]) -> list[str]:
    """Its second-best word, where that is behind by more than rounding and by less than what is never a tie."""
    for at, top in enumerate(words_of(body)[1] if speculative(body) else ()):
        best, second = sorted(top, key=top.__getitem__, reverse=True)[:2]
        if 0.2 < top[best] - top[second] < 0.9:
            return [*tokens[:at], second, *tokens[at + 1 :]]
    return tokens


def test_a_gap_beyond_the_rounding_is_a_defect(run_clover: Callable, prompts: Path) -> None:
    with fake(second_best, noise=0.001) as url:
        code, found, _ = audit(run_clover, prompts, url, "--temperature", 0)
    differences = [one for method in found["methods"] for one in method["mismatches"]]
    assert code == 1 and found["near_ties"] == 0 and found["defects"] >= len(differences) > 0
    assert all(0.15 < one["gap"] < 0.95 for one in differences) and found["rounding"]["pair"] < 0.01


def wrong_word(body: dict[str, Any], tokens: list[str]) -> list[str]:
    return (
        [*tokens[:5], " hat" if tokens[5] != " hat" else " mat", *tokens[6:]] if speculative(body) else tokens
    )


def ends_early(body: dict[str, Any], tokens: list[str]) -> list[str]:
    return tokens[:-1] if speculative(body) and body["max_tokens"] > 1 else tokens


def other_draw(body: dict[str, Any], tokens: list[str]) -> list[str]:
    return words_of(body | {"seed": body["seed"] + 99})[0] if speculative(body) and "seed" in body else tokens


def speculative(body: dict[str, Any]) -> bool:
    return body.get("speculation", True)


@pytest.mark.parametrize("change", [wrong_word, ends_early, other_draw])
def test_a_server_that_changes_something_is_not(run_clover: Callable, prompts: Path, change: Change) -> None:
    with fake(change) as url:
        code, found, _ = audit(run_clover, prompts, url)
    assert (code, found["verdict"]) == (1, "defect")


@pytest.mark.long
def test_samples_of_another_temperature_are_found(run_clover: Callable, prompts: Path) -> None:
    def hotter(body: dict[str, Any], tokens: list[str]) -> list[str]:
        return words_of(body | {"temperature": 3 * body["temperature"]})[0] if body["temperature"] else tokens

    with fake(hotter) as url, fake() as other:
        code, found, _ = audit(run_clover, prompts, url, "--plain-server", other, "--max-prompts", 1)
    assert code == 1
    assert found["sampled_p_value"] < 1e-4 and found["mismatches"] == 0


@pytest.mark.long
def test_a_server_beside_itself_is_asked_for_plain_decoding(run_clover: Callable, prompts: Path) -> None:
    """It was asked twice for the same, and always clean."""
    for change, expected in ((ends_early, 1), (other_draw, 0)):
        with fake(change) as url:
            code, *_ = audit(run_clover, prompts, url, "--plain-server", url, "--max-prompts", 1)
        assert code == expected


def test_what_cannot_be_audited_is_one_line(run_clover: Callable, prompts: Path) -> None:
    with fake(speculates=False) as url:
        for more, message in (((), "--plain-server"), (("--api-key", "wrong"), "401")):
            code, _, said = audit(run_clover, prompts, url, *more)
            assert code == 2 and message in said and "Traceback" not in said
    code, _, said = audit(run_clover, prompts, "http://127.0.0.1:9")
    assert code == 2 and "cannot be reached" in said
    code, _, said = audit(run_clover, prompts, "file:///etc/passwd")
    assert code == 2 and "not the address" in said


def test_a_key_of_any_letters_opens_our_own_server(tmp_path: Path) -> None:
    with serving(clover.load(*map(str, save_tiny_pair(tmp_path))), ServerOptions(api_key="ключ é")) as live:
        assert Endpoint(live.url, "ключ é").named().model == live.service.name


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """What answers every connection by these bytes, HTTP or not; the URL."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while (
                self.rfile.readline().strip()
            ):  # the request: who closes before it was read resets the connection
                pass
            self.wfile.write(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "cannot be reached: Server disconnected"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
            "cannot be reached: peer closed connection",
        ),
        (
            b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
            "cannot be reached: peer closed connection",
        ),
        (b"HTTP/1.1 404 Gone\r\n\r\n<p>not\r\nhere", "refuses with 404: <p>not here"),
    ],
)
def test_what_does_not_speak_the_protocol_is_one_line(
    run_clover: Callable, prompts: Path, answer: bytes, message: str
) -> None:
    with saying(answer) as url:
        code, _, said = audit(run_clover, prompts, url)
    assert code == 2 and message in said and "Traceback" not in said and said.count("\n") == 1


def test_the_projects_own_server_is_clean(run_clover: Callable, prompts: Path, tmp_path: Path) -> None:
    target, draft = map(str, save_tiny_pair(tmp_path))
    with serving(clover.load(target, draft, tree="clover2")) as server:
        code, found, said = audit(run_clover, prompts, server.url, "--batch-size", 2)
    assert (code, found["verdict"], found["defects"]) == (0, "clean", 0), said


def test_once_the_time_is_over_no_more_requests_are_sent() -> None:
    asked = list[str]()
    with fake(change=lambda body, tokens: asked.append(body["prompt"]) or tokens) as url:
        cases = [Case(number, f"text {number}", 3) for number in range(1, 5)]
        texts = Endpoint(url, model="fake", speculation=True).write(cases, 1, lambda: len(asked) > 1)
    assert [len(text.tokens) for text in texts] == [3, 3, 0, 0] and asked == ["text 1", "text 2"]
    assert [text.cut for text in texts] == [False, False, True, True]
