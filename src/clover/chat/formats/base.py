"""What a format is, and reasoning between <think> and </think>, which several formats share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
THINK = {"reasoning_content": {"open": "<think>", "close": "</think>"}}
# The pattern of this region captured the function's name, so that the text of the region is the arguments.
NAMED = {"function": {"name": "{name}", "arguments": "{content}"}}
# Parts of a forced call: the function's name, its arguments as JSON, or an object that has both; and a blank or none.
NAME, ARGUMENTS, BLANK = "{name}", "{arguments}", "{ }"
ELEMENTS = "{elements}"  # arguments as elements, each as `Format.element` has it
CALL, CALL_WITH_PARAMETERS = '{"name", "arguments"}', '{"name", "parameters"}'


@dataclass(frozen=True)
class Format:
    """How a family of models writes.

    Args:
        name: of the format, for messages.
        marks: strings that the chat templates of the family have, and those of no other format before it.
        fields: regions of the answer, see `clover.chat.formats`.
        forced: the parts of a call that is forced, special tokens included, by a string in the chat template; the first
            that is there counts. Nothing where calls cannot be forced.
        element: of an argument that stands for itself: what is before its name, between that and its value, and after
            it; by a string in the chat template, as in `forced`.
    """

    name: str
    marks: tuple[str, ...]
    fields: Mapping[str, Mapping[str, Any]]
    forced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    element: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)

    @staticmethod
    def shown_in(forms: Mapping[str, T], chat_template: str, default: T) -> T:
        """Return the first of some forms whose string a chat template has."""
        return next((form for mark, form in forms.items() if mark in chat_template), default)
