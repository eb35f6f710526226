"""A step of the engine that fails ends the requests of its batch, and nothing else."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clover.api import Clover
from clover.engine import Decoding
from tests.serve.live import serving

BODY = {"prompt": "abc", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def test_a_step_that_fails_ends_its_requests_and_the_next_ones_work(
    tiny_model: Clover, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step, left = Decoding.step, [5]

    def failing(self: Decoding) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return step(self)

    with serving(tiny_model) as live, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(Decoding, "step", failing)
        whole = pool.submit(live.post, "/v1/completions", BODY)
        streamed = pool.submit(live.events, "/v1/completions", BODY)
        status, answer = whole.result()
        answers = [(status, answer), (500, streamed.result()[-1])]
        failed = [answer["error"] for status, answer in answers if "error" in answer]
        assert failed and all(error["code"] == "engine_failed" for error in failed)
        assert all("Allocator" not in json.dumps(error) for error in failed)
        assert "lower --max-sequences" in caplog.text
        metrics = live.send("GET", "/metrics")[2].decode()
        assert f"clover_requests_failed_total {len(failed)}.0\n" in metrics
        live.until_idle()
        assert live.post("/v1/completions", BODY)[0] == 200
