"""Parse the answers of chat models, which may contain reasoning and calls of tools. See docs/serving.md.

`find_format` finds out how a model marks these parts. A `ReplyParser` reads an answer while it is written.
"""

from clover.chat.forced import call_grammar
from clover.chat.format import ChatFormat, find_format, find_tool_format, warn_of_marks
from clover.chat.reply import Delta, ReplyParser, ToolCall

__all__ = [
    "ChatFormat",
    "Delta",
    "ReplyParser",
    "ToolCall",
    "call_grammar",
    "find_format",
    "find_tool_format",
    "warn_of_marks",
]
