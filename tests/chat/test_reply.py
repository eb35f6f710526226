"""Answers of each known format, in pieces of any size: words, reasoning and calls come apart."""

from __future__ import annotations

from typing import Any

import pytest

from clover.chat import Delta, ReplyParser, find_format
from clover.errors import UserError
from tests.data.tokenizers import make_tokenizer

F, G = ("f", '{"a": 1}'), ("g", "{}")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            },
        },
    }
]
HERMES, THINKS, CODER, LLAMA = (
    "<tool_call>",
    "<tool_call></think>",
    "<tool_call><function=",
    '<|start_header_id|>"parameters"',
)
MISTRAL, HARMONY, DEEPSEEK = "[TOOL_CALLS]", "<|channel|><|message|>", "<｜tool▁call▁begin｜></think>"
ANALYSIS, START = "<|channel|>analysis<|message|>hm<|end|>", "<|start|>assistant"
ANSWERS: dict[str, tuple[str, str, str, str, list[tuple[str, str]]]] = {
    "words": (HERMES, " Hello,\n\nyou <b>there</b>. ", " Hello,\n\nyou <b>there</b>. ", "", []),
    "hermes": (
        THINKS,
        '<think>\nhm\n</think>\n\nOn it.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>\n',
        *("On it.", "hm", [F, G]),
    ),
    "arguments as text": (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        "",
        [F],
    ),
    "no JSON": (HERMES, 'x <tool_call>{"name": </tool_call> y', 'x {"name":  y', "", []),
    "no object": (HERMES, "x <tool_call>5</tool_call> y", "x 5 y", "", []),
    "cut off": (HERMES, 'x <tool_call>{"name": "f"', 'x {"name": "f"', "", []),
    "a mark that is none": (HERMES, "a <tool_cal and </tool_call>", "a <tool_cal and </tool_call>", "", []),
    "coder": (
        CODER,
        "I look.\n\n<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n<parameter=b>\n7\n 8\n</parameter>\n"
        "</function>\n</tool_call>",
        *("I look.", "", [("f", '{"a": 5, "b": "7\\n 8"}')]),
    ),
    "llama": (
        LLAMA,
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        "",
        [F, G],
    ),
    "llama, marked": (
        LLAMA,
        '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}',
        "",
        "",
        [F],
    ),
    "llama, other JSON": (LLAMA, '{"nam": 1}', '{"nam": 1}', "", []),
    "llama, JSON in words": (LLAMA, 'So: {"name": "f"}', 'So: {"name": "f"}', "", []),
    "mistral": (
        MISTRAL,
        '[THINK]hm[/THINK]Hi [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        *("Hi", "hm", [F, G]),
    ),
    "mistral, newer": (
        MISTRAL,
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abcdef123[ARGS]{}',
        "",
        "",
        [F, G],
    ),
    "harmony": (
        HARMONY,
        f"{ANALYSIS}{START}<|channel|>final<|message|>Hello\n there",
        "Hello\n there",
        "hm",
        [],
    ),
    "harmony, a call": (
        HARMONY,
        f"{ANALYSIS}{START}<|channel|>commentary<|message|>I look.<|end|>{START}<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1}<|call|>',
        *("I look.", "hm", [F]),
    ),
    "harmony, the recipient first": (
        HARMONY,
        f'{ANALYSIS}{START} to=functions.f<|channel|>commentary json<|message|>{{"a": 1}}',
        *("", "hm", [F]),
    ),
    "deepseek": (
        DEEPSEEK,
        'hm</think>b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        *("b", "hm", [F, G]),
    ),
    "deepseek, older": (
        DEEPSEEK,
        'hm</think>b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```'
        "<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>",
        *("b", "hm", [F]),
    ),
}


def read(reply: ReplyParser, text: str, size: int) -> Delta:
    """The whole of an answer that comes in pieces of `size` characters."""
    whole = Delta()
    for start in range(0, len(text), size):
        whole += reply.feed(text[start : start + size])
    return whole + reply.finish()


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("kind", ANSWERS)
def test_the_parts_of_an_answer(kind: str, size: int) -> None:
    marks, text, content, reasoning, calls = ANSWERS[kind]
    format = find_format(make_tokenizer("{# " + marks + " #}"), (1,), calls=True)
    assert format is not None
    prompt = "<think>\n" if marks == DEEPSEEK else "a question"  # as DeepSeek-R1's template ends
    delta = read(ReplyParser(format, prompt, TOOLS), text, size)
    assert (delta.content, delta.reasoning) == (content, reasoning)
    assert [(call.name, call.arguments) for call in delta.calls] == calls


OWN: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<|im_start|>analysis:", "close": "<|im_start|>final:"},
        "tool_calls": {
            "open_pattern": r"<\|im_start\|>call:(?P<name>\w+)",
            "close": ";",
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {},
    },
}


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_tokenizers_own_response_template_comes_first(size: int) -> None:
    tokenizer = make_tokenizer("{# <tool_call> #}")
    tokenizer.response_template = OWN
    format = find_format(tokenizer, (1,), calls=True)
    assert format is not None
    assert format.hidden == {0, 1, 3}  # <s>, </s>, <|im_end|>: <|im_start|> is a mark
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    answer = "<|im_start|>analysis: be kind<|im_start|>final: Hello!"
    whole = read(ReplyParser(format, prompt, ()), answer, size)
    assert (whole.content, whole.reasoning) == ("Hello!", "be kind")
    broken = read(ReplyParser(format, prompt, ()), "<|im_start|>call:f{broken; more", size)
    assert broken.content.endswith("{broken; more") and not broken.calls


def test_calls_are_words_where_no_tools_were_offered() -> None:
    assert find_format(make_tokenizer("{# <tool_call> #}"), (1,)) is None


def test_reasoning_between_unknown_special_tokens_is_named() -> None:
    """Else it would be glued to the answer: the text of an answer has no special tokens."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.thinking %}<|im_end|>thoughts: {{ m.thinking }}<|im_end|>{% endif %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(UserError, match=r"not supported: it marks its reasoning by <\|im_end\|>"):
        find_format(make_tokenizer(template), (1,))
    assert find_format(make_tokenizer(template.replace("<|im_end|>", "*")), (1,)) is None
