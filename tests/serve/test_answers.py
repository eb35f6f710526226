"""What a response says of its tokens, without a server."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest

from clover.engine import Generation, Request, StepEvent, TokenLogprobs
from clover.engine.text import Detokenizer
from clover.metrics import Acceptance
from clover.serve.answers import Answer
from clover.serve.bodies import CompletionBody
from clover.serve.parsing import ParsedRequest
from clover.serve.worker import TextStep
from tests.data.tokenizers import make_tokenizer

TOKENIZER = make_tokenizer()


def logprobs_of(
    tokens: list[int], text: str, value: float = -1.0, top: tuple[tuple[int, float], ...] = ()
) -> dict[str, Any]:
    """What the response to a completion says of tokens that came one by one, all with one log-probability.

    The last of them made the whole text certain; `top` are the likeliest of all.
    """
    request = Request((5,), len(tokens), logprobs=1)
    answer = Answer(ParsedRequest(CompletionBody(prompt="a", logprobs=1), (request,), 1), "tiny", TOKENIZER)
    whole = Generation(text, tuple(tokens), 1, 0, Acceptance(), "length", 0.1, 0.2)
    told = [(TokenLogprobs(value, top),) for token in tokens]
    ends = [None] * (len(tokens) - 1) + [whole]
    detokenizer, pieces = Detokenizer(TOKENIZER), []
    for token in tokens:
        detokenizer.push(token)
        pieces.append(detokenizer.piece)
    detokenizer.finish()
    pieces[-1] = detokenizer.piece
    events = [
        StepEvent(0, (token,), text if end else "", end, pieces=(piece,), logprobs=one)
        for token, end, piece, one in zip(tokens, ends, pieces, told, strict=True)
    ]
    (choice,) = answer.whole([TextStep(0, event, 0.1) for event in events])["choices"]
    return choice["logprobs"]


@pytest.mark.parametrize(
    ("text", "offsets"), [("a🙂b", [0, 1, 1, 1, 1, 2]), ("aé", [0, 1, 1]), ("a</s>b", [0, 1, 1])]
)
def test_offsets_are_places_in_the_text(text: str, offsets: list[int]) -> None:
    """Several tokens may make one character, and special ones make none."""
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert logprobs_of(tokens, TOKENIZER.decode(tokens, skip_special_tokens=True))["text_offset"] == offsets


@pytest.mark.parametrize("value", [-inf, nan])
def test_a_log_probability_that_is_no_finite_number_can_be_said(value: float) -> None:
    told = logprobs_of([7, 8], "xy", value)
    assert told["token_logprobs"] == [-9999.0] * 2
    json.dumps(told, allow_nan=False)


def test_the_texts_own_token_is_told_though_others_are_likelier() -> None:
    """As OpenAI and vLLM have it; of tokens with one name (halves of a character) the likeliest is told."""
    own, other = TOKENIZER("ab", add_special_tokens=False)["input_ids"]
    half, another = TOKENIZER("é", add_special_tokens=False)["input_ids"]
    for top, expected in (
        ((), {"a": -3.0}),
        (((own, -3.0), (other, -4.0)), {"a": -3.0, "b": -4.0}),
        (((other, -0.5),), {"b": -0.5, "a": -3.0}),
    ):
        told = logprobs_of([own], "a", -3.0, top)["top_logprobs"]
        assert told == [expected] and list(told[0]) == list(expected)
    assert logprobs_of([half], "\ufffd", -3.0, ((another, -0.5),))["top_logprobs"] == [{"\ufffd": -0.5}]
