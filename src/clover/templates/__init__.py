"""How a chat template renders a conversation: one way for generating, chat, the server, training and measuring.

A template is a program that comes with a model. It may read `content` as a string or as a list of parts, and the
arguments of a tool call as an object or as JSON; what it does not read it passes over without a word. So each template
is tried out once, with words that occur nowhere else, and is then given what it renders. What it renders in no form is
refused.

A tokenizer without a template gets `PLAIN_TEMPLATE` where a model is trained or measured. Whoever talks with such a
model gets an error, because it is no chat model.
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
