"""Answers of each known format, in pieces of any size: words, reasoning and calls come apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clover.chat import Delta, ReplyParser, call_grammar, find_format, find_tool_format
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
OTHER = {"type": "function", "function": {"name": "g"}}
HERMES, THINKS, CODER, LLAMA = (
    "<tool_call>",
    "<tool_call></think>",
    "<tool_call><function=",
    '<|start_header_id|>"parameters"',
)
GLM, GEMMA, LFM = "<tool_call><arg_key>", "<|tool_call><|channel>", "<|tool_call_start|>"
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
    prompt = "a question<think>\n" if marks == DEEPSEEK else "a question"  # as DeepSeek-R1's template ends
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


def add_marks(tokenizer: Any, marks: list[str], kind: str) -> None:
    """Make marks special tokens, or added tokens that are not special, or leave them words."""
    if kind == "special":
        tokenizer.add_special_tokens({"extra_special_tokens": sorted(set(marks))})
    elif kind == "added":
        tokenizer.add_tokens(sorted(set(marks)))


ARGS = '{"a": 1, "b": "x"}'
BEGIN, END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


@pytest.mark.parametrize(
    ("marks", "prompt", "text"),
    [
        (HERMES, "a question", f'<tool_call>\n{{"name": "f", "arguments": {ARGS}}}\n</tool_call>'),
        (THINKS, "<think>\n", f'</think>\n\n<tool_call>\n{{"name": "f", "arguments": {ARGS}}}\n</tool_call>'),
        (LLAMA, "a question", f'{{"name": "f", "parameters": {ARGS}}}'),
        (MISTRAL, "a question", f'[TOOL_CALLS][{{"name": "f", "arguments": {ARGS}}}]'),
        (MISTRAL, "a question", f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGS}}}]'),
        (MISTRAL + "[ARGS]", "a question", f"[TOOL_CALLS]f[ARGS]{ARGS}"),
        (HARMONY, START, f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{ARGS}"),
        (DEEPSEEK, "a question", f"{BEGIN}f<｜tool▁sep｜>{ARGS}{END}"),
        (DEEPSEEK + "```json", "", f"{BEGIN}function<｜tool▁sep｜>f\n```json\n{ARGS}\n```{END}"),
    ],
)
@pytest.mark.parametrize("kind_of_marks", ["words", "special", "added"])
def test_a_forced_call_is_one_that_is_read(marks: str, prompt: str, text: str, kind_of_marks: str) -> None:
    """Whether its marks are special tokens, which no text of a grammar can stand for, added ones (Qwen's), or words."""
    llguidance, hf = pytest.importorskip("llguidance"), pytest.importorskip("llguidance.hf")
    tokenizer = make_tokenizer("{# " + marks + " #}")
    add_marks(tokenizer, re.findall(r"<\|?[\w/]+\|?>|\[[A-Z_/]{3,}\]|<｜[\w▁]+｜>", text), kind_of_marks)
    format = find_format(tokenizer, (1,), calls=True)
    assert format is not None
    kind, _, grammar = call_grammar(format, [*TOOLS, OTHER], prompt).partition(":")
    assert kind == "lark"
    vocabulary = hf.from_tokenizer(tokenizer, n_vocab=len(tokenizer), eos_token=[1])
    other = re.sub(r'(?<=[".>\]])f\b', "g", text).replace(ARGS, "{}")
    for said in (text, other, "Hello", text.replace("f", "h"), text.replace("1", '"one"')):
        matcher = llguidance.LLMatcher(
            vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0
        )
        tokens = tokenizer(said, add_special_tokens=False)["input_ids"]
        fits = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert fits == (said in (text, other)), said
    (call,) = read(ReplyParser(format, prompt, TOOLS), text, 3).calls
    assert (call.name, call.arguments) == ("f", ARGS)


POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
ELEMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"$ref": "#/$defs/Unit"},
        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "at": {"$ref": "#/$defs/Point"},
    },
    "required": ["city", "at"],
    "$defs": {"Unit": {"enum": ["C", "F"]}, "Point": POINT},
}
NEW_GLM = "<arg_key>{}</arg_key><arg_value>{}</arg_value>"  # GLM-4.7 and later
STYLES = {
    CODER: ("<tool_call>\n<function=f>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n</tool_call>"),
    GLM: ("<tool_call>f", NEW_GLM, "</tool_call>"),
    GLM + "</arg_key>\n<arg_value>": (
        *("<tool_call>f\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>"),
    ),
}


@pytest.mark.parametrize("marks", STYLES)
@pytest.mark.parametrize("kind_of_marks", ["words", "special", "added"])
def test_forced_calls_may_have_arguments_as_elements(marks: str, kind_of_marks: str) -> None:
    """As a schema of pydantic has them: text is not quoted, all else is JSON, also behind a reference."""
    llguidance, hf = pytest.importorskip("llguidance"), pytest.importorskip("llguidance.hf")
    tokenizer = make_tokenizer("{# " + marks + " #}")
    before, element, after = STYLES[marks]
    found = re.findall(r"</?(?:tool_call|arg_key|arg_value)>", before + element + after)
    add_marks(tokenizer, found, kind_of_marks)
    tools = [{"type": "function", "function": {"name": "f", "parameters": ELEMENTS}}]
    format = find_format(tokenizer, (1,), calls=True)
    assert format is not None
    grammar = call_grammar(format, tools, "").removeprefix("lark:")
    vocabulary = hf.from_tokenizer(tokenizer, n_vocab=len(tokenizer), eos_token=[1])
    good = {"city": 'Paris\n <b> "5"', "unit": "C", "days": 5, "at": {"x": 1.5}}
    several = [
        (good, True),
        ({"city": "5", "at": {"x": 1}}, True),
        ({"city": "", "days": None, "at": {"x": 1}}, True),
        ({"city": "Rome"}, False),
        ({"city": "a</tool_call>", "at": {"x": 1}}, False),
        (good | {"unit": "K"}, False),
        (good | {"days": "five"}, False),
        (good | {"at": "here"}, False),
        (good | {"more": 1}, False),
        ({"at": {"x": 1}, "city": "Rome"}, False),
    ]
    for arguments, valid in several:
        written = [value if isinstance(value, str) else json.dumps(value) for value in arguments.values()]
        said = before + "".join(map(element.format, arguments, written)) + after
        matcher = llguidance.LLMatcher(
            vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0
        )
        tokens = tokenizer(said, add_special_tokens=False)["input_ids"]
        assert (matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()) == valid, said
        if valid:
            (call,) = read(ReplyParser(format, "", tools), said, 3).calls
            assert (call.name, json.loads(call.arguments)) == ("f", arguments)


@pytest.mark.parametrize(
    "parameters",
    [
        *(
            {"properties": 5},
            {"properties": {"a": 5}},
            {"properties": {"a": {"type": 5, "enum": 5, "anyOf": 5}}},
        ),
        *(
            {
                "properties": {"a": {"$ref": "#/$defs/A"}},
                "$defs": {"A": {"$ref": "#/$defs/A"}},
                "required": 5,
            },
            {},
        ),
    ],
)
def test_schemas_that_are_none_break_nothing(parameters: dict[str, Any]) -> None:
    format = find_format(make_tokenizer("{# " + CODER + " #}"), (1,), calls=True)
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert format is not None and call_grammar(format, tools, "").startswith("lark:start: call0")
    said = "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"
    (call,) = read(ReplyParser(format, "", tools), said, 100).calls
    assert call.arguments == '{"a": "x"}'


@pytest.mark.parametrize(("marks", "name"), [(GEMMA, "Gemma 4"), (LFM, "LFM2")])
def test_a_format_whose_calls_cannot_be_forced_is_named(marks: str, name: str) -> None:
    format = find_format(make_tokenizer("{# " + marks + " #}"), (1,), calls=True)
    assert format is not None
    with pytest.raises(UserError, match=f"calls in the format {name} cannot be forced"):
        call_grammar(format, TOOLS, "")


def test_calls_are_words_where_no_tools_were_offered() -> None:
    assert find_format(make_tokenizer("{# <tool_call> #}"), (1,)) is None


@pytest.mark.parametrize(
    ("said", "mark"),
    [
        ("<|im_end|>notes: {{ m.thinking }}<|im_end|>", "<|im_end|>"),  # what the template renders
        ("{% if false %}<|im_start|>analysis\n{% endif %}", "<|im_start|>"),  # what it speaks of
        ("{% if false %}[BEGIN_THINKING]{% endif %}", "[BEGIN_THINKING]"),  # what the token is called
        ("*{{ m.thinking }}*", None),  # words, which the answer shows
    ],
)
def test_reasoning_between_unknown_special_tokens_is_named(said: str, mark: str | None) -> None:
    """Else it would be glued to the answer: the text of an answer has no special tokens."""
    message = "<|im_start|>{{ m.role }}: {% if m.thinking %}" + said + "{% endif %}{{ m.content }}"
    tokenizer = make_tokenizer("{% for m in messages %}" + message + "{% endfor %}")
    if mark is None:
        assert find_format(tokenizer, (1,)) is None
        return
    tokenizer.add_special_tokens({"extra_special_tokens": ["[BEGIN_THINKING]"]})
    with pytest.raises(UserError, match=rf"not supported: it marks its reasoning by {re.escape(mark)}"):
        find_format(tokenizer, (1,))


@pytest.mark.parametrize(
    ("tags", "content", "reasoning"),
    [
        (("<think>", "</think>"), "Hi.", "Hm."),
        (("<|begin_of_thought|>", "<|end_of_thought|>"), "<|begin_of_thought|>Hm.<|end_of_thought|>Hi.", ""),
    ],
)
def test_thoughts_of_which_the_template_says_nothing_are_not_glued_to_the_answer(
    tags: tuple[str, str], content: str, reasoning: str
) -> None:
    tokenizer = make_tokenizer("{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}{% endfor %}")
    tokenizer.add_special_tokens({"extra_special_tokens": list(tags)})
    format = find_format(tokenizer, (1,))
    assert format is not None and not format.hidden & set(tokenizer.convert_tokens_to_ids(list(tags)))
    found = read(ReplyParser(format, "", ()), f"{tags[0]}Hm.{tags[1]}Hi.", 3)
    assert (found.content, found.reasoning) == (content, reasoning)


def test_a_response_template_that_cannot_be_used_is_named() -> None:
    tokenizer = make_tokenizer("{{ messages }}")
    tokenizer.response_template = {"fields": {"thinking": {"open": "a", "content": "poem"}}}
    with pytest.raises(UserError, match="cannot parse the answers of this model"):
        find_format(tokenizer, (1,))
    tokenizer.response_template = {"fields": {"analysis": {"open": "a"}}}
    with pytest.raises(
        UserError, match="a field 'analysis', whose text would be lost; content, role, reasoning"
    ):
        find_format(tokenizer, (1,))


@pytest.mark.long
def test_the_templates_of_trl_are_known_or_refused(tmp_path: Path) -> None:
    """No reasoning of a template there is glued to an answer, and no calls are taken for words."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, "trl"]
    if subprocess.run(install).returncode != 0:
        pytest.skip("trl cannot be installed here")
    found, refusals = dict[str, list[str]](), set[str]()
    for file in sorted((tmp_path / "trl" / "chat_templates").glob("*.jinja")):
        tokenizer = make_tokenizer(text := file.read_text())
        marks = set(re.findall(r"<\|?[\w/]+\|?>|\[[A-Z_/]{3,}\]|<｜[\w▁]+｜>", text))
        tokenizer.add_special_tokens({"extra_special_tokens": sorted(marks - {"<think>", "</think>"})})
        for find in (find_format, find_tool_format):
            try:
                format = find(tokenizer, (1,))
            except UserError as error:
                refusals.add(re.sub("by .*?,", "by it,", str(error)))
            else:
                found[file.stem] = sorted(format.template["fields"]) if format else []
    assert len(refusals) == 3  # no tools, an unknown format of calls, an unknown one of reasoning
    assert len(found) > 30
    for name in ("qwen3", "qwen3_5_think", "gptoss", "glm4moe", "gemma4", "nemotron_3_nano", "lfm2_2_5"):
        assert {"content", "reasoning_content", "tool_calls"} <= set(found[name]), name
