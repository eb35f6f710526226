"""Requests that run together: each gets the text that it gets alone, and turns of a chat find what is kept of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serve.live import Live

PROMPTS = ["abc abc abc", "def area(self):", "x", "import os\nimport sys\nimport re\n", "0 1 2 3 4 5 6 7"]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.2, "seed": 4, "top_p": 0.8, "presence_penalty": 2},
    {"temperature": 0, "speculation": False},
    {"temperature": 0.7, "seed": 5, "top_k": 7, "logit_bias": {"20": 3}, "logprobs": 1},
    {"temperature": 0, "stop": [" ", "e"]},
]


def bodies(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 6 + 5 * (i % 6)} | PARAMS[i % len(PARAMS)]
        for i in range(count)
    ]


def text(live: Live, body: dict[str, Any], stream: bool = False) -> tuple[str, str]:
    if stream:
        choices = [chunk["choices"][0] for chunk in live.events("/v1/completions", body)]
        return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]
    status, answer = live.post("/v1/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]


@pytest.mark.parametrize(("server", "count"), [("live", 14), ("embedded", 4)])
def test_texts_are_those_of_the_requests_alone(
    server: str, count: int, request: pytest.FixtureRequest
) -> None:
    live: Live = request.getfixturevalue(server)
    asked = bodies(count)
    with ThreadPoolExecutor(count) as pool:
        together = list(pool.map(lambda pair: text(live, pair[1], pair[0] % 2 == 0), enumerate(asked)))
    assert together == [text(live, body) for body in asked]
    live.until_idle()


def test_the_next_turn_of_a_chat_need_not_be_run_from_the_start(live: Live) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say something nice."},
    ]
    body = {"messages": messages, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    _, first = live.post("/v1/chat/completions", body)
    said = first["choices"][0]["message"]["content"]
    more = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    _, second = live.post("/v1/chat/completions", body | {"messages": more})
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens"] - 3 <= cached < second["usage"]["prompt_tokens"]
    other = [{"role": "user", "content": "Something else altogether"}]
    _, fresh = live.post("/v1/chat/completions", body | {"messages": other})
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_metrics_count_what_ran(live: Live) -> None:
    def metrics() -> dict[str, float]:
        lines = live.send("GET", "/metrics")[2].decode().splitlines()
        return {
            name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")
        }

    before = metrics()
    _, answer = live.post(
        "/v1/completions", {"prompt": "abc", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    )
    after = metrics()
    new = {name: after[name] - before.get(name, 0) for name in after}
    steps = sum(answer["speculative_decoding"]["acceptance_histogram"])
    assert new["clover_generation_tokens_total"] == 20
    assert new["clover_prompt_tokens_total"] == answer["usage"]["prompt_tokens"]
    assert new["clover_accepted_tokens_per_step_count"] == steps
    assert new["clover_accepted_tokens_per_step_sum"] == 20 - steps
    assert new["clover_time_to_first_token_seconds_count"] == 1
    assert new["clover_inter_token_latency_seconds_count"] == steps - 1
    assert new['clover_request_success_total{finished_reason="length"}'] == 1
    _, answer = live.post("/v1/completions", {"prompt": ["abc", "abc"], "n": 3, "max_tokens": 2})
    assert (
        metrics()["clover_prompt_tokens_total"] - after["clover_prompt_tokens_total"]
        == (answer["usage"]["prompt_tokens"])
    )
    assert after["clover_mean_acceptance_length"] >= 1
    assert after["clover_num_requests_running"] == after["clover_num_requests_waiting"] == 0
