"""Qwen3-Coder and Qwen3.5: the arguments of a call are elements. Only the tool's schema has their types.

<tool_call>
<function=weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from clover.chat.formats.base import ELEMENTS, NAME, NAMED, Format

FORMAT = Format(
    name="Qwen3-Coder",
    marks=("<tool_call>", "<function="),
    forced={"": ("<tool_call>\n<function=", NAME, ">\n", ELEMENTS, "</function>\n</tool_call>")},
    element={"": ("<parameter=", ">\n", "\n</parameter>\n")},
    fields={
        "content": {},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>",
            },
            "transform": NAMED,
        },
    },
)
