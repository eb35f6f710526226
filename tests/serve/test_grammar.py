"""Answers by `response_format`, as the real client of OpenAI requests them, and what cannot be combined with it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

pytest.importorskip("llguidance")
import llguidance

from clover.api import Clover
from clover.errors import UserError
from clover.grammar import Grammars
from clover.serve.options import ServerOptions
from tests.scripted import HARMONY, scripted
from tests.serve.live import NAME, serving

SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["yes", "n"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
CHAT: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "yes?"}],
    "response_format": FORMAT,
    "seed": 1,
}


def create(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(**CHAT | more)


def check(text: str) -> None:
    found = json.loads(text)
    assert set(found) == {"yes", "n"} and isinstance(found["yes"], bool) and 0 <= found["n"] <= 9


def test_answers_follow_the_schema_whole_and_streamed(client: openai.OpenAI) -> None:
    for more in ({"temperature": 0}, {"n": 3}, {"extra_body": {"speculation": False}, "temperature": 0}):
        answer = create(client, **more)
        for choice in answer.choices:
            assert choice.finish_reason == "stop" and choice.message.content
            check(choice.message.content)
    chunks = create(client, stream=True)
    check("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))


def test_drafting_and_plain_answers_are_equal(client: openai.OpenAI) -> None:
    texts = [
        create(client, extra_body={"speculation": on}).choices[0].message.content for on in (True, False)
    ]
    assert texts[0] == texts[1]


def test_any_object_begins_as_one(client: openai.OpenAI) -> None:
    text = create(client, response_format={"type": "json_object"}, max_tokens=20).choices[0].message.content
    assert text is not None and text.startswith("{")
    words = create(client, response_format={"type": "text"}, max_tokens=5)
    assert words.choices[0].message.content is not None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}}}, "grammar"),
        ({"extra_body": {"ignore_eos": True}}, "ignore_eos"),
        ({"extra_body": {"min_tokens": 4}}, "excluded"),
    ],
)
def test_what_does_not_go_with_a_grammar_is_refused(
    client: openai.OpenAI, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        create(client, **more)


@pytest.mark.parametrize("texts", [1, 2])
def test_a_grammar_that_becomes_too_complex_is_the_clients_mistake(tiny_model: Clover, texts: int) -> None:
    """Unlike NaN, which is the server's; requests beside it go on."""
    value = {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "object"}]}
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["yes", "no"]}, "b": value},
        "required": ["a", "b"],
    }
    format = {"type": "json_schema", "json_schema": {"name": "any", "schema": schema}}
    body = CHAT | {"response_format": format, "max_tokens": 60, "temperature": 0, "n": texts}
    with serving(tiny_model) as live:
        grammars = Grammars(live.service.parser._model.target)
        grammars.limits = llguidance.LLParserLimits(step_max_items=20)
        live.service.parser._model._grammars = grammars
        status, answer = live.post("/v1/chat/completions", body)
        assert (status, answer["error"]["code"]) == (400, "grammar_failed")
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["param"] == "response_format"
        assert ("text 1 of 2: the grammar" in answer["error"]["message"]) == (texts == 2)
        status, _ = live.post("/v1/completions", {"prompt": "abc", "max_tokens": 4})
        assert status == 200


def test_answers_that_begin_with_reasoning_are_refused() -> None:
    thought = (
        "<|channel|>analysis<|message|>be kind<|end|><|start|>assistant<|channel|>final<|message|>Hello!"
    )
    with serving(scripted(HARMONY, thought)) as live:
        status, answer = live.post("/v1/chat/completions", CHAT)
    assert status == 400 and "grammar" in answer["error"]["message"]


def test_a_grammar_of_the_server_is_that_of_every_text(tiny_model: Clover) -> None:
    with serving(tiny_model, ServerOptions(grammar="regex:[ab]{4}")) as live:
        _, answer = live.post("/v1/completions", {"prompt": "a", "max_tokens": 20})
        assert len(answer["choices"][0]["text"]) == 4 and set(answer["choices"][0]["text"]) <= set("ab")
        _, answer = live.post("/v1/chat/completions", CHAT | {"max_tokens": 40})
        check(answer["choices"][0]["message"]["content"])
    with pytest.raises(UserError, match="none of them"), serving(tiny_model, ServerOptions(grammar="[ab]")):
        pass
