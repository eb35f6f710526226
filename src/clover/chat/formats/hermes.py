"""Hermes, and most models of Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one block for each call."""

from clover.chat.formats.base import CALL, Format

FORMAT = Format(
    name="Hermes",
    marks=("<tool_call>",),
    forced={"": ("<tool_call>\n", CALL, "\n</tool_call>")},
    fields={
        "content": {},
        "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "repeats": True},
    },
)
