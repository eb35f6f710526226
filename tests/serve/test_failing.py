"""A step of the engine that fails ends the requests of its batch, a chat template that fails a chat; nothing else."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clover.api import Clover
from clover.engine import Scheduler
from clover.errors import UserError
from tests.data.tokenizers import CHATML
from tests.engine.test_unusable import BreakingRunner
from tests.serve.live import serving

BODY = {"prompt": "abc", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def test_a_step_that_fails_ends_its_requests_and_the_next_ones_work(
    tiny_model: Clover, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step, left = Scheduler.step, [5]

    def failing(self: Scheduler) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return step(self)

    with serving(tiny_model) as live, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(Scheduler, "step", failing)
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


def test_a_stream_has_the_text_before_logits_that_cannot_be_used(tiny_model: Clover) -> None:
    """What was held back, because a stop string might have begun, comes with the step that has no logits."""
    with serving(tiny_model) as live:
        text = live.post("/v1/completions", BODY)[1]["choices"][0]["text"]
    model = copy.copy(tiny_model)
    model.engine = copy.copy(tiny_model.engine)
    model.engine.runner = BreakingRunner(model.target, model.engine.hidden_state)
    with serving(model) as live:
        *events, last = live.events("/v1/completions", BODY | {"stop": text[:30] + "no more"})
    assert last["error"]["code"] == "engine_failed" and "logits" in last["error"]["message"]
    shown = "".join(event["choices"][0]["text"] for event in events)
    assert shown and text.startswith(shown)


def test_logits_that_cannot_be_used_are_a_clear_error_of_their_request_alone(tiny_model: Clover) -> None:
    model = copy.copy(tiny_model)
    model.engine = copy.copy(tiny_model.engine)
    model.engine.runner = BreakingRunner(model.target, model.engine.hidden_state)
    model.engine.runner.broken = len(model.encode("abcd"))
    broken, several = BODY | {"prompt": "abcd"}, BODY | {"prompt": ["abc", "abcd"]}
    assert model.engine.runner.broken != len(model.encode("abc"))
    with serving(model) as live, ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda body: live.post("/v1/completions", body), (BODY, broken, several)))
    assert answers[0][0] == 200 and answers[0][1]["usage"]["completion_tokens"] == 60
    assert [status for status, _ in answers[1:]] == [500, 500]
    errors = [answer["error"] for _, answer in answers[1:]]
    assert errors[0]["message"].startswith("the target's logits are NaN or infinite in")
    assert errors[1]["message"].startswith("text 2 of 2: the target's logits are NaN or infinite in")
    assert all(one["code"] == "engine_failed" for one in errors)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_ends_at_once_when_its_engine_does(
    tiny_model: Clover, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("not of a step")

    monkeypatch.setattr(Scheduler, "add", fail)
    with serving(tiny_model) as live:
        assert live.post("/v1/completions", BODY)[1]["error"]["code"] == "stopping"
        live.thread.join(30)
        assert not live.thread.is_alive()


@pytest.mark.parametrize(
    "template",
    ["{% for", "{{ raise_exception('begin with a system\nmessage') }}", {"rag": CHATML, "tools": CHATML}],
)
def test_a_template_that_fails_is_one_line_and_completions_need_none(
    tiny_model: Clover, template: Any
) -> None:
    model, messages = copy.copy(tiny_model), [{"role": "user", "content": "abc"}]
    model.target = copy.copy(tiny_model.target)
    model.target.tokenizer = copy.deepcopy(tiny_model.target.tokenizer)
    model.target.tokenizer.chat_template = template  # type: ignore[union-attr]
    with pytest.raises(UserError, match="chat template"):
        model.generate(messages)
    with serving(model) as live:
        assert live.service.card["chat"] is False
        status, answer = live.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert "chat template" in answer["error"]["message"] and "\n" not in answer["error"]["message"]
        assert live.post("/v1/completions", BODY)[0] == 200
