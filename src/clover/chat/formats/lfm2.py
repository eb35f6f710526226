"""LFM2: `<|tool_call_start|>[weather(city="Paris")]<|tool_call_end|>`, a list of calls as Python writes them."""

from clover.chat.formats.base import Format

FORMAT = Format(
    name="LFM2",
    marks=("<|tool_call_start|>",),
    fields={
        "content": {},
        "tool_calls": {
            "open": "<|tool_call_start|>",
            "close": "<|tool_call_end|>",
            "repeats": True,
            "content": "python-call-list",
        },
    },
)
