from __future__ import annotations

import pytest

from clover.engine import Engine, Request
from clover.measure.methods import TransformersGenerate
from clover.measure.timing import decode, make_batches
from clover.target import TargetModel
from tests.families import tiny_model

PROMPTS = [(5, 6, 7, 5, 6, 7, 5), (8, 9), (10, 11, 12, 13)]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def expected(target: TargetModel, batch: list) -> tuple[tuple[int, ...], ...]:
    return decode(Engine(target), batch).texts


def test_greedy_texts_are_those_of_plain_decoding(target: TargetModel) -> None:
    (batch,) = make_batches(PROMPTS, 3, 0.0, 12, 100)
    run = TransformersGenerate(target)(batch)
    assert run.texts == expected(target, batch)  # rows of different length, and rows that end early
    assert run.acceptance.tau == 1.0 and run.acceptance.emitted == run.tokens
    assert run.seconds > 0


def test_a_request_says_which_tokens_end_it(target: TargetModel) -> None:
    texts = expected(target, [Request(prompt, 12, eos=()) for prompt in PROMPTS])
    assert [len(text) for text in texts] == [12, 12, 12]
    for eos in ((), (texts[1][4],)):
        batch = [Request(prompt, 12, eos=eos) for prompt in PROMPTS]
        for end in (None, texts[0][2]):  # what the model's own configuration says is not asked
            target.model.generation_config.eos_token_id = end
            assert TransformersGenerate(target)(batch).texts == expected(target, batch)
    target.model.generation_config.eos_token_id = None


@pytest.mark.parametrize("how", ["lookup", "assistant"])
def test_drafts_of_transformers_write_the_same_and_steps_are_counted(target: TargetModel, how: str) -> None:
    other = {"lookup_tokens": 4} if how == "lookup" else {"assistant": tiny_model("llama")}
    theirs = TransformersGenerate(target, **other)
    assert theirs.one_row_only
    for batch in make_batches(PROMPTS, 1, 0.0, 12, 100):
        run = theirs(batch)
        assert run.texts == expected(target, batch)
        assert run.acceptance.emitted == run.tokens
        if how == "assistant":  # the target itself: it is always right
            assert run.acceptance.tau > 1.5


def test_sampled_texts_depend_on_the_seed_alone(target: TargetModel) -> None:
    first, second, *_ = make_batches(PROMPTS[:1] * 2, 1, 1.0, 20, 100)
    assert TransformersGenerate(target)(first).texts == TransformersGenerate(target)(first).texts
    assert TransformersGenerate(target)(first).texts != TransformersGenerate(target)(second).texts
