"""What a format is, and reasoning between <think> and </think>, which several formats share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

THINK = {"reasoning_content": {"open": "<think>", "close": "</think>"}}
# The pattern of this region captured the function's name, so that the text of the region is the arguments.
NAMED = {"function": {"name": "{name}", "arguments": "{content}"}}


@dataclass(frozen=True)
class Format:
    """How a family of models writes.

    Args:
        marks: strings that the chat templates of the family have, and those of no other format before it.
        fields: regions of the answer, see `clover.chat.formats`.
        forced: what stands before a call that is JSON, what its arguments are called, and what stands after it; None
            where calls cannot be forced, because special tokens mark them or they are no JSON.
    """

    marks: tuple[str, ...]
    fields: Mapping[str, Mapping[str, Any]]
    forced: tuple[str, str, str] | None = None
