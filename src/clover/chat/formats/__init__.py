"""The formats in which known models write reasoning and calls: one file each, in the language of transformers.

A format is used for a tokenizer that brings no `response_template` of its own, if its chat template has all of the
format's `marks`. `fields` are those of a transformers response template (its guide "Chat response parsing"): regions of
the answer by name, "reasoning_content" and names that begin with "tool_calls". What a region of calls gives is read by
`clover.chat.reply.read_calls`. To add a format, write a file with a `FORMAT` and name it here.
"""

from clover.chat.formats import deepseek, harmony, hermes, llama3, mistral, qwen3_coder
from clover.chat.formats.base import THINK, Format

FORMATS = tuple(
    one.FORMAT for one in (harmony, deepseek, mistral, qwen3_coder, hermes, llama3)
)  # the first that fits

__all__ = ["FORMATS", "THINK", "Format"]
