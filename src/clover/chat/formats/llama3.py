"""Llama 3.1 to 3.3: the whole answer is `{"name": …, "parameters": {…}}`, after `<|python_tag|>` or alone.

Several calls are separated by "; ". The model's built-in tools, which it calls in Python, stay text.
"""

from clover.chat.formats.base import CALL_WITH_PARAMETERS, Format

FORMAT = Format(
    name="Llama 3",
    marks=("<|start_header_id|>", '"parameters"'),
    forced={"": (CALL_WITH_PARAMETERS,)},
    fields={
        "content": {},
        "tool_calls": {
            "open_pattern": r"\A\s*(?:<\|python_tag\|>\s*)?"
            r'(?=\{\s*"(?:type"\s*:\s*"function"\s*,\s*"name|name)"\s*:)'
        },
    },
)
