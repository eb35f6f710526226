"""GLM-4.5 and later: `<tool_call>name`, then the arguments as elements. Only the tool's schema has their types.

<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
</tool_call>
"""

from clover.chat.formats.base import ELEMENTS, NAME, NAMED, Format

FORMAT = Format(
    name="GLM-4.5",
    marks=("<tool_call>", "<arg_key>"),
    forced={
        "</arg_key>\n<arg_value>": ("<tool_call>", NAME, "\n", ELEMENTS, "</tool_call>"),
        "": ("<tool_call>", NAME, ELEMENTS, "</tool_call>"),
    },
    element={
        "</arg_key>\n<arg_value>": ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        "": ("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
    },
    fields={
        "content": {},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*(?P<name>[^\s<]+)",
            "close": "</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
            },
            "transform": NAMED,
        },
    },
)
