from __future__ import annotations

import torch

from clover.drafts import RecallDraft
from clover.engine import Engine
from clover.measure.timing import make_batches, time_decoding
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
    plain, drafted = (time_decoding(engine, batch) for engine in (Engine(target), Engine(target, draft)))
    assert plain.texts == drafted.texts and len(plain.texts) == 3
    assert plain.tokens == sum(map(len, plain.texts)) == plain.acceptance.emitted
    assert plain.acceptance.tau == 1.0 <= drafted.acceptance.tau
    assert [sum(row, ()) for row in drafted.steps] == list(drafted.texts)
    assert [one.emitted for one in drafted.acceptances] == [len(text) for text in drafted.texts]
    assert sum(drafted.acceptances, Acceptance()) == drafted.acceptance
    assert plain.clock.steps == max(map(len, plain.texts))
    assert 0 < plain.clock.decoding_seconds < plain.seconds
