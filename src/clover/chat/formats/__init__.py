"""The formats in which known models write reasoning and calls, one file each.

A format is used for a tokenizer without its own `response_template` whose chat template has all of the format's
`marks`. `fields` are those of a transformers response template (see its guide "Chat response parsing"): regions of the
answer by name. Clover reads "reasoning_content" and names that begin with "tool_calls"; `clover.chat.reply.read_calls`
reads the calls. To add a format, write a file with a `FORMAT` and name it here.
"""

from clover.chat.formats import deepseek, gemma4, glm4, harmony, hermes, lfm2, llama3, mistral, qwen3_coder
from clover.chat.formats.base import THINK, Format

# The first that fits is used, so formats with more marks come before those with fewer.
_ALL = (harmony, gemma4, deepseek, mistral, qwen3_coder, glm4, hermes, lfm2, llama3)
FORMATS: tuple[Format, ...] = tuple(one.FORMAT for one in _ALL)

__all__ = ["FORMATS", "THINK", "Format"]
