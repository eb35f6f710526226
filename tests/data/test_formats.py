import json
from typing import Any

import pytest

from clover.data.formats import Record, Written, WrittenSample, parse_record
from clover.errors import UserError

SAY, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
TOOL = {"type": "function", "function": {"name": "f"}}
RECORDS: list[tuple[dict[str, Any], Record]] = [
    ({"text": "some text", "id": 3}, Record("x", completion="some text")),
    ({"messages": [SAY, ANSWER]}, Record("x", messages=(SAY, ANSWER))),
    ({"messages": [SAY], "text": "not this"}, Record("x", messages=(SAY,))),
    (
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]},
        Record("x", messages=(SAY, ANSWER)),
    ),
    (
        {"conversations": [{"from": "gpt", "value": "cut"}, {"from": "user", "value": "hi"}]},
        Record("x", messages=(SAY,)),
    ),
    ({"conversations": [SAY, ANSWER]}, Record("x", messages=(SAY, ANSWER))),
    ({"turns": ["hi", "hi"]}, Record("x", messages=(SAY, SAY))),
    ({"turns": [SAY, ANSWER]}, Record("x", messages=(SAY, ANSWER))),
    ({"prompt": "def f", "completion": "(x):"}, Record("x", prompt="def f", completion="(x):")),
    ({"prompt": "def f", "test": "no"}, Record("x", prompt="def f")),
    ({"prompt": [SAY], "completion": [ANSWER]}, Record("x", messages=(SAY, ANSWER))),
    ({"question": "hi", "answer": "yes"}, Record("x", messages=(SAY, ANSWER))),
    ({"prompt": "hi", "response": "yes"}, Record("x", messages=(SAY, ANSWER))),
    ({"prompt": [SAY], "response": "yes"}, Record("x", messages=(SAY, ANSWER))),
    ({"instruction": "hi", "input": "", "output": "yes"}, Record("x", messages=(SAY, ANSWER))),
    (
        {"instruction": "hi", "context": "there", "response": "yes"},
        Record("x", messages=(SAY | {"content": "hi\n\nthere"}, ANSWER)),
    ),
    ({"query": "hi", "response": "yes"}, Record("x", messages=(SAY, ANSWER))),
    ({"text": "kept", "messages": None}, Record("x", completion="kept")),
    (
        {"index": 3, "tokens": [7, 8, 9, 7], "loss_mask": [0, 1, 1, 0]},
        Record("x", written=Written("", False, (WrittenSample([7, 8, 9, 7], [(1, 3)]),))),
    ),
]


@pytest.mark.parametrize(("fields", "record"), RECORDS)
def test_records_are_recognised_by_their_fields(fields: dict[str, Any], record: Record) -> None:
    assert parse_record(fields, "x") == record


def test_messages_keep_what_templates_may_read() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = [{"role": "user", "content": parts}, {"role": "user", "content": parts[:1]}, call]
    messages = parse_record({"messages": said}, "x").messages
    assert [one["content"] for one in messages[:2]] == [parts, "a"]
    assert messages[2] == {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}


@pytest.mark.parametrize(
    ("user", "model"), [("human", "gpt"), ("User", "Assistant"), (" USER ", "model"), ("prompter", "bot")]
)
def test_roles_have_the_names_that_templates_know(user: str, model: str) -> None:
    said = [{"role": user, "content": "hi"}, {"role": model, "content": "yes"}]
    sharegpt = [{"from": user, "value": "hi"}, {"from": model, "value": "yes"}]
    for fields in ({"messages": said}, {"prompt": said[:1], "completion": said[1:]}, {"turns": said}):
        assert parse_record(fields, "x").messages == (SAY, ANSWER)
    for name in ("messages", "conversations"):
        assert parse_record({name: sharegpt}, "x").messages == (SAY, ANSWER)


def test_tools_and_system_belong_to_a_conversation() -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}},
    }
    filled = {**tool, "strict": None, "function": tool["function"] | {"description": None}}
    said = {"messages": [SAY, ANSWER], "system": "Be brief."}
    for tools in ([tool], [filled], json.dumps([tool]), [json.dumps(tool)]):
        record = parse_record(said | {"tools": tools}, "x")
        assert record.tools == (tool,)
        assert record.messages == ({"role": "system", "content": "Be brief."}, SAY, ANSWER)
    assert record.digest() != parse_record(said, "x").digest()
    again = parse_record(said | {"messages": list(record.messages)}, "x")
    assert again.messages == record.messages
    with pytest.raises(UserError, match="the field system and the first message differ"):
        parse_record(said | {"messages": [{"role": "system", "content": "Be long."}, SAY]}, "x")
    with pytest.raises(UserError, match="x: tools must be a list of objects"):
        parse_record(said | {"tools": [5]}, "x")


def test_nulls_are_left_out_at_every_depth() -> None:
    function = {"name": "f", "arguments": {"city": "Paris", "of_another": None, "more": {"none": None}}}
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": None, "function": function}],
        "name": None,
    }
    message = parse_record({"messages": [SAY, call]}, "x").messages[1]
    kept = {"name": "f", "arguments": {"city": "Paris", "more": {}}}
    assert message == {"role": "assistant", "content": "", "tool_calls": [{"function": kept}]}
    packed = call | {"tool_calls": json.dumps([{"function": function}])}
    assert parse_record({"messages": [SAY, packed]}, "x").messages[1]["tool_calls"] == [
        {"function": function}
    ]


def test_names_of_one_field_may_both_be_there_if_they_agree() -> None:
    turns = [SAY | {"from": "human", "value": SAY["content"]}, ANSWER | {"from": "model"}]
    said = {"messages": turns, "system": "Be brief.", "system_prompt": "Be brief.", "history": []}
    record = parse_record(said | {"tools": [TOOL], "functions": [TOOL]}, "x")
    assert [one["content"] for one in record.messages] == ["Be brief.", SAY["content"], ANSWER["content"]]
    assert record.tools == (TOOL,)
    empty = parse_record({"messages": [SAY | {"value": ""}, ANSWER]}, "x")
    assert empty.messages == parse_record({"messages": [SAY, ANSWER]}, "x").messages


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([1], "must be a JSON object, not a list"),
        (
            {"body": "x"},
            "found: body; accepted: messages; conversations; turns; prompt . completion; prompt . response; ",
        ),
        ({"question": "x"}, "no field that can be used"),
        ({"text": 3}, "x: text must be text, not a number"),
        ({"messages": []}, "messages must be a list that is not empty"),
        ({"messages": ["hi"]}, "messages, turn 1 must be an object, not text"),
        ({"messages": [SAY, {"role": "user"}]}, "messages, turn 2: content must be text, not null"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only content of type text"),
        ({"conversations": [{"from": "alien", "value": "x"}]}, "unknown speaker 'alien'"),
        ({"conversations": [{"from": "human"}]}, "turn 1: content must be text, not null"),
        ({"conversations": [{"from": "gpt", "value": "cut"}]}, "x: conversations: there is nothing"),
        ({"turns": "hi"}, "turns must be a list"),
        (
            {"prompt": "hi", "completion": "yes", "system": "Be brief."},
            "system, tools and history belong to a conversation",
        ),
        ({"prompt": "hi", "completion": "yes", "history": [["a", "b"]]}, "belong to a conversation"),
        ({"messages": [SAY, ANSWER | {"train_detail": [{"begin_offset": 1}]}]}, "turn 2: .* train_detail"),
        ({"messages": [SAY, ANSWER], "history": [["a", "b"]]}, "history belongs to a question"),
        ({"messages": [SAY, ANSWER], "system": "a", "system_prompt": "b"}, "system and system_prompt differ"),
        (
            {"messages": [SAY, ANSWER], "tools": [TOOL], "functions": [TOOL, TOOL]},
            "tools and functions differ",
        ),
        ({"instruction": "a", "input": "b", "context": "c", "output": "d"}, "x: input and context differ"),
        ({"messages": [SAY | {"value": "other"}, ANSWER]}, "messages, turn 1: content and value differ"),
        ({"conversations": [{"from": "human", "role": "gpt", "value": "a"}]}, "from and role differ"),
        (
            {"messages": [SAY, ANSWER | {"function_call": TOOL, "tool_calls": [TOOL]}]},
            "turn 2: it has function_call and tool_calls",
        ),
        ({"tokens": [1, 2], "loss_mask": [1, 1, 1]}, "a span of learnt does not lie within tokens"),
        ({"tokens": [1, -2], "loss_mask": [1, 1]}, "tokens.1 is -2"),
        ({"tokens": [1, 2**32], "loss_mask": [0, 1]}, "tokens.1 is 4294967296"),
        ({"tokens": [1, 2], "loss_mask": [1, "x"]}, "loss_mask must be a list of 0 and 1, not of text"),
        ({"prompt": "x", "completion": {}}, "completion must be text, not an object"),
        (
            {"question": "x", "answer": True},
            "question . answer, turn 2: content must be text, not true or false",
        ),
    ],
)
def test_bad_records_say_what_is_wrong(fields: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_record(fields, "x")


@pytest.mark.parametrize(
    "fields", [{"k" * 10**5: "x"}, {"conversations": [{"from": "k" * 10**5, "value": "x"}]}]
)
def test_long_names_are_cut_in_messages(fields: Any) -> None:
    with pytest.raises(UserError) as raised:
        parse_record(fields, "x")
    assert "k" * 40 in str(raised.value) and len(str(raised.value)) < 500


def test_tools_and_calls_may_be_json_at_any_depth_and_have_their_former_names() -> None:
    parameters = {"type": "object"}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    call = {"type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
    asked = {"role": "user", "content": "?"}
    said = {"role": "assistant", "content": ""}
    expected = parse_record({"messages": [asked, said | {"tool_calls": [call]}], "tools": [tool]}, "x")
    whole = tool | {"function": tool["function"] | {"parameters": json.dumps(parameters)}}
    for tools in (
        json.dumps([tool]),
        [json.dumps(tool)],
        [tool | {"function": json.dumps(tool["function"])}],
        [whole],
    ):
        for calls in (
            json.dumps([call]),
            [json.dumps(call)],
            [call | {"function": json.dumps(call["function"])}],
        ):
            record = {"messages": [asked, said | {"tool_calls": calls}], "tools": tools}
            assert parse_record(record, "x") == expected
    former = parse_record(
        {"messages": [asked, said | {"function_call": call["function"]}], "functions": [tool["function"]]},
        "x",
    )
    assert former.tools == (tool["function"],) and former.messages[1]["tool_calls"] == [call["function"]]


QUESTION_PAIR = {"question": "q", "response": "a"}


def test_what_stands_before_a_question_is_kept() -> None:
    """OpenOrca has `system_prompt`; Alpaca, as LLaMA-Factory reads it, `history`."""
    asked = [("user", "q"), ("assistant", "a")]
    for fields, before in (
        ({"system_prompt": "S"}, [("system", "S")]),
        ({"history": [["q0", "a0"]]}, [("user", "q0"), ("assistant", "a0")]),
        ({"history": [], "system_prompt": ""}, []),
        ({"system": "S", "history": [["q0", "a0"]]}, [("system", "S"), ("user", "q0"), ("assistant", "a0")]),
    ):
        messages = parse_record(QUESTION_PAIR | fields, "x").messages
        assert [(one["role"], one["content"]) for one in messages] == before + asked
    with pytest.raises(UserError, match="x: history must be a list of pairs"):
        parse_record(QUESTION_PAIR | {"history": [["q0"]]}, "x")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"images": ["x.png"]}, "it has images, but a draft reads only text"),
        ({"image": "x.png"}, "it has image, but a draft"),
        ({"image_url": {"url": "x.png"}}, "it has image_url, but a draft"),
        ({"videos": [b"x"]}, "it has videos, but a draft"),
        ({"documents": [{"text": "d"}]}, "the field documents cannot be used"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "the field chat_template_kwargs cannot be used",
        ),
        ({"enable_thinking": False}, "the field enable_thinking cannot be used"),
        ({"completion": "a", "label": False}, "its label says"),
        ({"label": False}, "its label says"),
        ({"completion": "a", "label": 0}, "its label says"),
        ({"weight": 0}, "its weight is 0"),
        ({"weight": "1"}, "weight is '1'"),
        ({"weight": 0.5}, "weight is 0.5"),
    ],
)
def test_records_that_say_more_than_their_text_are_refused(more: dict[str, Any], said: str) -> None:
    for fields in ({"prompt": [{"role": "user", "content": "q"}]}, QUESTION_PAIR):
        with pytest.raises(UserError, match=f"^x: {said}"):
            parse_record(fields | more, "x")
        nothing = dict.fromkeys(more, None) | {
            "images": [],
            "chat_template_kwargs": {},
            "label": True,
            "weight": 1,
        }
        assert parse_record(fields | nothing, "x").messages


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "What is it?", "images": ["x.png"]}, "it has images"),
        ({"content": "What is it?", "audio": {"data": "UklG"}}, "it has audio"),
        (
            {"content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
            "it has a part of type image",
        ),
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "it has a part of type image_url"),
        ({"content": [{"type": "video", "text": "It runs."}]}, "it has a part of type video"),
        ({"content": [{"type": "text", "text": "What is it?", "image": {"path": "x"}}]}, "it has image"),
        ({"content": [{"text": "What is it?"}]}, "it has a part without a type"),
        ({"content": "<image>\nWhat is it?"}, "it has a placeholder of a picture"),
        ({"content": "What is it?\n <image> \n"}, "it has a placeholder of a picture"),
        ({"content": "<audio>"}, "it has a placeholder of a picture or sound"),
    ],
)
def test_what_shows_more_than_text_is_refused(message: dict[str, Any], said: str) -> None:
    answer = {"role": "assistant", "content": "A cat."}
    for role in ("user", "human"):
        with pytest.raises(UserError, match=f"x: messages, turn 1: {said}"):
            parse_record({"messages": [{"role": role} | message, answer]}, "x")


def test_words_and_empty_fields_of_media_are_none() -> None:
    """As the rows of a table have them: an empty struct in each part, an empty list in each record."""
    parts = [
        {"type": "text", "text": "Hi", "image": {"bytes": None}},
        {"type": "text", "text": "!", "image": None},
    ]
    said = "Why is <image> no tag?\nAnd <video>, is it one?"
    record = parse_record(
        {"messages": [{"role": "user", "content": parts, "images": []}], "image": None}, "x"
    )
    assert [part["text"] for part in record.messages[0]["content"]] == ["Hi", "!"]
    assert parse_record({"question": said, "answer": "<image>"}, "x").messages[0]["content"] == said
    assert parse_record({"text": "<image>"}, "x").completion == "<image>"


@pytest.mark.parametrize("nothing", ["[]", "null", "", [], {}, None])
def test_no_tools_and_no_calls_may_be_json(nothing: Any) -> None:
    """Tables store lists as text."""
    said = {"role": "assistant", "content": "a", "tool_calls": nothing}
    record = parse_record({"messages": [{"role": "user", "content": "q"}, said], "tools": nothing}, "x")
    assert record.tools == () and record.messages[1] == {"role": "assistant", "content": "a"}
