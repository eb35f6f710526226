"""The formats in which known models write reasoning and calls: one file each, in the language of transformers.

A format is used for a tokenizer that brings no `response_template` of its own, if its chat template has all of the
format's `marks`. `fields` are those of a transformers response template (its guide "Chat response parsing"): regions of
the answer by name, "reasoning_content" and names that begin with "tool_calls". What a region of calls gives is read by
`clover.chat.reply.read_calls`. To add a format, write a file with a `FORMAT` and name it here.
"""

from clover.chat.formats import deepseek, gemma4, glm4, harmony, hermes, lfm2, llama3, mistral, qwen3_coder
from clover.chat.formats.base import THINK, Format

# The first that fits is used, so formats with more marks come before those with fewer.
_ALL = (harmony, gemma4, deepseek, mistral, qwen3_coder, glm4, hermes, lfm2, llama3)
FORMATS: tuple[Format, ...] = tuple(one.FORMAT for one in _ALL)

__all__ = ["FORMATS", "THINK", "Format"]
