"""DeepSeek: calls between special tokens, with the name before `<｜tool▁sep｜>` (V3.1) or after it (V3, R1)."""

from clover.chat.formats.base import ARGUMENTS, NAME, NAMED, Format

_BEGIN, _END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"

FORMAT = Format(
    name="DeepSeek",
    marks=("<｜tool▁call▁begin｜>",),
    forced={
        "```json": (_BEGIN, "function<｜tool▁sep｜>", NAME, "\n```json\n", ARGUMENTS, "\n```", _END),
        "": (_BEGIN, NAME, "<｜tool▁sep｜>", ARGUMENTS, _END),
    },
    fields={
        "content": {},
        "tool_calls": {
            "open_pattern": r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?"
            r"(?P<name>(?!function<)[\w.-]+)(?:<｜tool▁sep｜>|\n```json\n)",
            "close_pattern": r"(?:\n?```)?\s*<｜tool▁call▁end｜>",
            "repeats": True,
            "transform": NAMED,
        },
        "nothing": {"open": "<｜tool▁calls▁end｜>"},  # text after the last call is dropped
    },
)
