"""The class of formats, and reasoning between <think> and </think>, which several formats share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
THINK = {"reasoning_content": {"open": "<think>", "close": "</think>"}}
# For a region whose pattern captures the function's name; the text of the region is the arguments.
NAMED = {"function": {"name": "{name}", "arguments": "{content}"}}
# Parts of a forced call: the function's name, its arguments as JSON, an optional blank, or an object with name and
# arguments.
NAME, ARGUMENTS, BLANK = "{name}", "{arguments}", "{ }"
ELEMENTS = "{elements}"  # arguments as elements, each in the form of `Format.element`
CALL, CALL_WITH_PARAMETERS = '{"name", "arguments"}', '{"name", "parameters"}'


@dataclass(frozen=True)
class Format:
    """The format in which a family of models writes.

    Args:
        name: the name of the format in messages.
        marks: strings in all chat templates of the family. Formats with more marks are tried first.
        fields: regions of the answer, see `clover.chat.formats`.
        forced: the parts of a forced call, with special tokens, by a string of the chat template; the first string that
            the template contains counts. Empty if calls cannot be forced.
        element: the strings before an argument's name, before its value, and after its value, by a string of the chat
            template as in `forced`.
    """

    name: str
    marks: tuple[str, ...]
    fields: Mapping[str, Mapping[str, Any]]
    forced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    element: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)

    @staticmethod
    def shown_in(forms: Mapping[str, T], chat_template: str, default: T) -> T:
        """Return the form of the first string that a chat template contains."""
        return next((form for mark, form in forms.items() if mark in chat_template), default)
