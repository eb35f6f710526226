"""Render conversations by chat templates, in the same way for generating, chat, the server, training and measuring.

A template is a program that comes with a model. It may read `content` as a string or as a list of parts, and the
arguments of a tool call as an object or as JSON; anything else it ignores silently. So each template is tried once with
words that occur nowhere else, and then gets the form that it renders. A conversation that it renders in no form is
refused.

If a model without a template is trained or measured, it gets `PLAIN_TEMPLATE`. For a chat with it there is an error,
because it is not a chat model.
"""

from clover.templates.rendering import (
    answer_start,
    check_template_options,
    encode_rendered,
    encode_text,
    render,
    spare_bos,
    spare_eos,
    template_name,
)
from clover.templates.shown import media_in, media_name
from clover.templates.template import PLAIN_TEMPLATE, REASONING, TemplateRefused

__all__ = [
    "PLAIN_TEMPLATE",
    "REASONING",
    "TemplateRefused",
    "answer_start",
    "check_template_options",
    "template_name",
    "encode_rendered",
    "encode_text",
    "media_in",
    "media_name",
    "render",
    "spare_bos",
    "spare_eos",
]
