"""gpt-oss, "harmony": channels between special tokens, as in `<|channel|>analysis<|message|>…<|end|>`.

The channels are analysis (the reasoning), final, and commentary. The last holds words for the user, and calls such as
`<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>`. The recipient may
also come before the channel. Text outside messages is dropped.
"""

from clover.chat.formats.base import ARGUMENTS, NAME, NAMED, Format

_KIND = r"(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?\s*\w*\s*<\|message\|>"
_END = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"]

FORMAT = Format(
    name="gpt-oss",
    marks=("<|channel|>", "<|message|>"),
    forced={
        "": ("<|channel|>commentary to=functions.", NAME, " <|constrain|>json<|message|>", ARGUMENTS),
    },
    fields={
        "reasoning_content": {
            "open_pattern": r"<\|channel\|>analysis<\|message\|>",
            "close": _END,
            "repeats": True,
            "join": "\n",
        },
        "tool_calls": {
            "open_pattern": rf"to=functions\.(?P<name>[\w.-]+)\s*{_KIND}",
            "close": _END,
            "repeats": True,
            "transform": NAMED,
        },
        "content": {
            "open_pattern": r"<\|channel\|>(?:final|commentary)\s*(?:<\|constrain\|>\s*\w+)?\s*<\|message\|>",
            "close": _END,
            "repeats": True,
            "join": "\n",
        },
    },
)
