"""Answers that do not fit their format: no text is lost."""

import pytest

from clover.chat import Delta, ReplyParser, find_format
from tests.chat.test_reply import OWN, read
from tests.data.tokenizers import make_tokenizer

# Errors of the parser: a call that is no JSON, JSON too deep for Python, and reasoning that is missing at the end.
MISFITS = (
    "Hi  <|im_start|>call:f{bro ;EN ken;END more",
    "a <|im_start|>call:f" + "[" * 10_000 + ";END",
    "Hi <|im_st",
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("answer", MISFITS)
def test_an_answer_that_does_not_fit_keeps_the_text_that_its_parser_held_back(answer: str, size: int) -> None:
    fields = {name: dict(one) for name, one in OWN["fields"].items()}
    fields["tool_calls"]["close"], fields["thinking"]["optional"] = ";END", False
    tokenizer = make_tokenizer("{# #}")
    tokenizer.response_template = OWN | {"fields": fields}
    format = find_format(tokenizer, (1,), calls=True)
    assert format is not None
    whole = read(ReplyParser(format, OWN["start_anchor"], ()), answer, size)
    mark = "<|im_start|>call:f"
    assert whole == Delta(whole.content) and whole.content.replace(mark, "") == answer.replace(mark, "")


def test_a_call_that_is_too_deep_for_python_becomes_content() -> None:
    format = find_format(make_tokenizer("{# <tool_call> #}"), (1,), calls=True)
    assert format is not None
    call = '{"name": "f", "arguments": ' + "[" * 10_000
    assert read(ReplyParser(format, "", ()), f"<tool_call>{call}</tool_call>", 1_000) == Delta(call)
