from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from clover.drafts import RecallDraft
from clover.engine import Engine
from clover.measure.timing import decode, make_batches
from clover.metrics import Acceptance
from clover.target import TargetModel
from tests.families import tiny_model

PROMPTS = [(5, 6, 7), (8, 9), (10, 11, 12, 13)]


def test_batches_are_filled_up() -> None:
    batches = make_batches(PROMPTS, 2, 0.5, 10, 12)
    assert [[request.prompt for request in batch] for batch in batches] == [
        [PROMPTS[0], PROMPTS[1]],
        [PROMPTS[2], PROMPTS[0]],
    ]
    requests = [request for batch in batches for request in batch]
    assert [request.params.seed for request in requests] == [0, 1, 2, 3]
    assert [request.max_new_tokens for request in requests] == [9, 10, 8, 9]  # what the context leaves
    assert {request.params.temperature for request in requests} == {0.5}


def test_a_run_is_what_the_engine_wrote() -> None:
    target = TargetModel(tiny_model("llama"))
    torch.manual_seed(0)
    draft = RecallDraft.from_target(target, num_heads=2).eval()
    (batch,) = make_batches(PROMPTS, 3, 0.0, 10, 100)
    plain, drafted = (decode(engine, batch) for engine in (Engine(target), Engine(target, draft)))
    assert plain.texts == drafted.texts and len(plain.texts) == 3
    assert plain.tokens == sum(map(len, plain.texts)) == plain.acceptance.emitted
    assert plain.acceptance.tau == 1.0 <= drafted.acceptance.tau
    assert [sum(row, ()) for row in drafted.steps] == list(drafted.texts)
    assert [one.emitted for one in drafted.acceptances] == [len(text) for text in drafted.texts]
    assert sum(drafted.acceptances, Acceptance()) == drafted.acceptance
    assert plain.clock.steps == max(map(len, plain.texts))
    assert 0 < plain.clock.decoding_seconds < plain.seconds


def test_a_text_that_ends_early_is_done() -> None:
    target = TargetModel(tiny_model("llama"))
    (batch,) = make_batches(PROMPTS, 3, 0.0, 24, 100)
    eos = decode(Engine(target), batch).texts[0][4]
    ending = [replace(request, eos=(eos,)) for request in batch]
    shares = list[float]()
    run = decode(Engine(target), ending, max_sequences=1, progress=shares.append)
    lengths = list(map(len, run.texts))
    assert lengths[0] <= 5 and len(shares) == sum(lengths)
    assert shares[lengths[0] - 1] == pytest.approx(1 / 3)  # the first of three
    assert shares[-1] == 1 and shares == sorted(shares)
