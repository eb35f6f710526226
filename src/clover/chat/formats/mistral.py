"""Mistral: `[TOOL_CALLS]` and a list of calls, or since 2025 each call as `[TOOL_CALLS]name[ARGS]{…}`; `[THINK]`."""

from clover.chat.formats.base import ARGUMENTS, BLANK, CALL, NAME, NAMED, Format

FORMAT = Format(
    name="Mistral",
    marks=("[TOOL_CALLS]",),
    forced={
        "[ARGS]": ("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS),
        "": ("[TOOL_CALLS]", BLANK, "[", CALL, "]"),
    },
    fields={
        "content": {},
        "reasoning_content": {"open": "[THINK]", "close": "[/THINK]"},
        "tool_calls_listed": {"open_pattern": r"\[TOOL_CALLS\]\s*(?=\[)"},
        "tool_calls": {
            "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]",
            "close_pattern": r"(?=\[TOOL_CALLS\])",
            "repeats": True,
            "transform": NAMED,
        },
    },
)
