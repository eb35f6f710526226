"""Gemma 4: `<|channel>thought` … `<channel|>`, and calls as `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`."""

from clover.chat.formats.base import NAMED, Format

FORMAT = Format(
    name="Gemma 4",
    marks=("<|tool_call>", "<|channel>"),
    fields={
        "content": {},
        "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>[\w.-]+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {
                "unquoted_keys": True,
                "string_delims": [['<|"|>', '<|"|>']],
                "allow_non_json": True,
            },
            "transform": NAMED,
        },
    },
)
