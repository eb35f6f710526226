"""Chats that are more than words, by the real client of OpenAI: tools, reasoning, and what of them is refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.scripted import HARMONY, QWEN, scripted
from tests.serve.live import NAME, Live, serving

CALLS = (
    "<think>\nTwo cities.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
)
WEATHER = {
    "name": "weather",
    "description": "It tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "What is the weather in Paris and Rome?"}],
    "tools": [{"type": "function", "function": WEATHER | {"strict": True}}],
    "temperature": 0,
}
THOUGHT = "<|channel|>analysis<|message|>be kind<|end|><|start|>assistant<|channel|>final<|message|>Hello!"


@pytest.fixture(scope="module")
def seen() -> list[str]:
    """The prompts that the model of tools got."""
    return []


@pytest.fixture(scope="module")
def tools(seen: list[str]) -> Iterator[Live]:
    def answer(prompt: str) -> str:
        seen.append(prompt)
        return "Sunny." if "<tool_response>" in prompt else CALLS

    with serving(scripted(QWEN, answer)) as live:
        yield live


@pytest.fixture(scope="module")
def thinker() -> Iterator[Live]:
    with serving(scripted(HARMONY, THOUGHT)) as live:
        yield live


def client_of(live: Live) -> Any:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0).chat.completions


def test_calls_reasoning_and_words_come_apart_whole_and_streamed(tools: Live, seen: list[str]) -> None:
    choice = client_of(tools).create(**ASKED).choices[0]
    message = choice.message
    assert choice.finish_reason == "tool_calls"
    assert (message.content, message.reasoning_content) == ("I look.", "Two cities.")
    calls = [
        (call.type, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls
    ]
    assert calls == [("function", "weather", {"city": "Paris"}), ("function", "weather", {"city": "Rom"})]
    assert len({call.id for call in message.tool_calls}) == 2
    assert '"description": "It tells the weather."' in seen[-1] and "strict" not in seen[-1]
    chunks = list(client_of(tools).create(**ASKED, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "Two cities."
    streamed = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.index for call in streamed] == [0, 1]
    assert [
        ("function", call.function.name, json.loads(call.function.arguments)) for call in streamed
    ] == calls
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "tool_calls"


def test_the_stream_helper_of_the_client_puts_calls_together(tools: Live) -> None:
    with client_of(tools).stream(**ASKED) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [json.loads(call.function.arguments)["city"] for call in message.tool_calls] == ["Paris", "Rom"]


def test_results_of_tools_go_back_to_the_model(tools: Live, seen: list[str]) -> None:
    said = client_of(tools).create(**ASKED).choices[0].message
    result = {
        "role": "tool",
        "tool_call_id": said.tool_calls[0].id,
        "content": [{"type": "text", "text": "20 °C"}],
    }
    messages = [*ASKED["messages"], said.model_dump(exclude_none=True), result]
    answer = client_of(tools).create(**ASKED | {"messages": messages}).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("Sunny.", "stop")
    # Arguments, which clients send as text, are the object that the model wrote.
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>' in seen[-1]
    assert "<tool_response>20 °C</tool_response>" in seen[-1] and "Two cities." not in seen[-1]


def test_choices_among_calls(tools: Live) -> None:
    one = client_of(tools).create(**ASKED, parallel_tool_calls=False).choices[0].message
    assert [json.loads(call.function.arguments)["city"] for call in one.tool_calls] == ["Paris"]
    for options in ({"tool_choice": "none"}, {"tools": None}, {"tools": []}):
        message = client_of(tools).create(**ASKED | options).choices[0].message
        assert message.tool_calls is None and message.content == CALLS.partition("</think>\n\n")[2]


def test_the_template_gets_what_it_reads_beside_the_messages(seen: list[str]) -> None:
    template = (
        "{% if enable_thinking is false %}<|im_start|>system\nDo not think.<|im_end|>\n{% endif %}" + QWEN
    )

    def answer(prompt: str) -> str:
        seen.append(prompt)
        return "Sunny."

    with serving(scripted(template, answer)) as live:
        for options in ({"enable_thinking": False}, {"enable_thinking": True}, {}, None):
            client_of(live).create(**ASKED, extra_body={"chat_template_kwargs": options})
            assert ("Do not think." in seen[-1]) == (options == {"enable_thinking": False})
        for name in ("thinking", "messages", "add_generation_prompt"):
            with pytest.raises(
                openai.BadRequestError, match=f"does not read '{name}'; it reads enable_thinking"
            ) as found:
                client_of(live).create(**ASKED, extra_body={"chat_template_kwargs": {name: True}})
            assert found.value.param == "chat_template_kwargs"


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
CHOICES = [
    {"name": name, "parameters": CITY | {"additionalProperties": False}} for name in ("weather", "time")
]


CODER = QWEN.replace("<tool_call>", "<tool_call><function=")


@pytest.mark.parametrize(
    "template", [QWEN, QWEN + "{% if add_generation_prompt %}<think>\n{% endif %}", CODER]
)
@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"weather", "time"}), ({"type": "function", "function": {"name": "time"}}, {"time"})],
)
def test_a_call_can_be_forced(template: str, choice: Any, names: set[str]) -> None:
    """Of a model that would write words; drafting changes nothing."""
    pytest.importorskip("llguidance")
    asked = ASKED | {
        "tools": [{"type": "function", "function": one} for one in CHOICES],
        "tool_choice": choice,
    }
    with serving(scripted(template, "It is warm and sunny there, and so it stays.")) as live:
        for options in ({}, {"extra_body": {"speculation": False}}, {"temperature": 1.0, "seed": 3}):
            found = client_of(live).create(**asked | options).choices[0]
            (call,) = found.message.tool_calls
            assert (found.finish_reason, found.message.content) == ("tool_calls", None)
            assert call.function.name in names
            assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_a_forced_call_follows_definitions_of_its_tool() -> None:
    """As pydantic writes schemas; two tools may have different definitions of one name."""
    pytest.importorskip("llguidance")
    tools = [
        {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"place": {"$ref": "#/$defs/Place"}},
                "required": ["place"],
                "additionalProperties": False,
                "$defs": {"Place": {"enum": values}},
            },
        }
        for name, values in (("weather", ["Paris", "Rome"]), ("time", ["Lima", "Quito"]))
    ]
    asked = ASKED | {"tools": [{"type": "function", "function": one} for one in tools]}
    with serving(scripted(QWEN, "It is warm and sunny there.")) as live:
        for name, values in (("weather", ("Paris", "Rome")), ("time", ("Lima", "Quito"))):
            choice = {"type": "function", "function": {"name": name}}
            (call,) = client_of(live).create(**asked | {"tool_choice": choice}).choices[0].message.tool_calls
            assert json.loads(call.function.arguments)["place"] in values
        (call,) = client_of(live).create(**asked | {"tool_choice": "required"}).choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["place"] in ("Paris", "Rome", "Lima", "Quito")


def test_the_name_of_a_speaker_goes_to_the_template(seen: list[str]) -> None:
    template = QWEN.replace(
        "{% else %}<|im_start|>{{ m.role }}\n", "{% else %}<|im_start|>{{ m.role }} {{ m.name }}\n"
    )

    def answer(prompt: str) -> str:
        seen.append(prompt)
        return "Sunny."

    with serving(scripted(template, answer)) as live:
        client_of(live).create(model=NAME, messages=[{"role": "user", "name": "Bob", "content": "?"}])
    assert "<|im_start|>user Bob\n?" in seen[-1]


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        (
            {"tool_choice": {"type": "function", "function": {"name": "time"}}},
            "tool_choice",
            "no tool 'time'",
        ),
        ({"tool_choice": "required", "tools": None}, "tool_choice", "required needs tools"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format", "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools.0.type"),
        ({"tools": [{"type": "function", "function": WEATHER | {"name": "a b"}}]}, "tools", "name"),
        ({"tools": [{"type": "function", "function": WEATHER | {"cache": True}}]}, "tools", "cache"),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_calls": []}, {"role": "user"}]},
            "messages",
            "content",
        ),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages", "tool_call_id"),
    ],
)
def test_what_cannot_be_done_is_named(tools: Live, change: Any, param: str, said: str) -> None:
    status, answer = tools.post("/v1/chat/completions", ASKED | change)
    assert status == 400 and answer["error"]["param"] == param and said in answer["error"]["message"], answer


def test_arguments_of_earlier_calls_must_be_an_object(tools: Live) -> None:
    for arguments in ("{", "5"):
        call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [*ASKED["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
        status, answer = tools.post("/v1/chat/completions", ASKED | {"messages": messages})
        assert status == 400 and "the tool call 'weather' are not a JSON object" in answer["error"]["message"]


def test_models_that_know_no_tools_refuse_them(live: Live) -> None:
    status, answer = live.post("/v1/chat/completions", ASKED | {"max_tokens": 1})
    assert (status, answer["error"]["param"]) == (400, "tools")
    assert "not made for tools" in answer["error"]["message"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_comes_back_under_either_name(name: str) -> None:
    """OpenAI's clients of vLLM send what they got: in newer versions as `reasoning`."""
    seen = list[str]()

    def answer(prompt: str) -> str:
        seen.append(prompt)
        return "Hello!"

    template = QWEN.replace(" and loop.last", "")
    said = {"role": "assistant", "content": "Hi.", name: "Be kind."}
    asked = [{"role": "user", "content": "Hi"}, said, {"role": "user", "content": "And?"}]
    with serving(scripted(template, answer)) as live:
        assert live.post("/v1/chat/completions", {"messages": asked})[0] == 200
    assert "<think>Be kind.</think>Hi." in seen[-1]


def test_reasoning_between_special_tokens_is_no_part_of_the_answer(thinker: Live) -> None:
    body: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    message = client_of(thinker).create(**body, logprobs=True).choices[0].message
    assert (message.content, message.reasoning_content) == ("Hello!", "be kind")
    deltas = [chunk.choices[0].delta for chunk in client_of(thinker).create(**body, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == "Hello!"
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "be kind"
    again = client_of(thinker).create(**body, n=2)
    assert [choice.message.content for choice in again.choices] == ["Hello!", "Hello!"]


def test_a_model_whose_reasoning_cannot_be_told_apart_is_not_offered_for_chat() -> None:
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.thinking %}<|constrain|>"
        "{{ m.thinking }}<|end|>{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    )
    with serving(scripted(template, "x")) as live:
        assert live.service.card["chat"] is False
        status, answer = live.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
        assert status == 400 and "marks its reasoning by <|constrain|>" in answer["error"]["message"]
        assert live.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2})[0] == 200


def test_reasoning_that_nothing_gives_away_is_not_glued_in_silence() -> None:
    """Marks of which neither name nor chat template speaks: one warning, in every front end; none for whole answers."""
    asked = [{"role": "user", "content": "Hi"}]
    match = r"holds the special token <\|start\|> amid its words"
    glued = scripted(QWEN, "<|start|>Be kind.<|end|>Hello!")
    with pytest.warns(UserWarning, match=match):
        assert glued.generate(asked).text == "Be kind.Hello!"
    with pytest.warns(UserWarning, match=match):
        list(glued.chat().say("Hi"))
    with pytest.warns(UserWarning, match=match):
        list(glued.stream(asked))
    with pytest.warns(UserWarning, match=match), serving(glued) as live:
        live.post("/v1/chat/completions", {"messages": asked})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        glued.generate("Hi", max_new_tokens=2)  # no conversation
        scripted(QWEN, "Hello!<|end|><|start|>").generate(asked)
        glued.generate(asked, max_new_tokens=8, ignore_eos=True)  # then ends stand amid the words, too
        with serving(glued) as live:
            body = {"messages": asked, "max_tokens": 8, "ignore_eos": True}
            assert live.post("/v1/chat/completions", body)[0] == 200
        scripted(HARMONY, "<|channel|>final<|message|>Hello!").generate(asked)


def test_calls_between_special_tokens_can_be_forced(thinker: Live) -> None:
    pytest.importorskip("llguidance")
    offered = {"tools": [{"type": "function", "function": one} for one in CHOICES], "tool_choice": "required"}
    for options in ({}, {"extra_body": {"speculation": False}}):
        found = client_of(thinker).create(**ASKED | offered | options).choices[0]
        (call,) = found.message.tool_calls
        assert (found.finish_reason, found.message.content) == ("tool_calls", None)
        assert call.function.name in {"weather", "time"}
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_calls_of_which_no_grammar_is_known_cannot_be_forced() -> None:
    with serving(scripted(QWEN.replace("<tool_call>", "<|tool_call_start|>"), "x")) as live:
        status, answer = live.post("/v1/chat/completions", ASKED | {"tool_choice": "required"})
    assert (status, answer["error"]["param"]) == (400, "tool_choice")
    assert "calls in the format LFM2 cannot be forced" in answer["error"]["message"]
