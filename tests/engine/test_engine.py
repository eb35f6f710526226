"""The engine's behaviour around the tokens: ends, text, events, limits, prefixes, early stops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clover.drafts import RecallDraft
from clover.engine import Engine, PhaseClock, Request
from clover.errors import UserError
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.families import CONTEXT, tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module")
def draft(target: TargetModel) -> RecallDraft:
    torch.manual_seed(0)
    return RecallDraft.from_target(target).to(target.dtype).eval()


def tokens_of(engine: Engine, request: Request) -> tuple[int, ...]:
    return next(e.generation for e in engine.run([request]) if e.generation is not None).tokens


def test_events_add_up_to_the_generation(target: TargetModel, draft: RecallDraft) -> None:
    requests = [
        Request((3, 4), 9),
        Request((5,), 17, SamplingParams(temperature=1.0)),
        Request((6, 7, 8), 13),
    ]
    parts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    finished = {}
    for event in Engine(target, draft).run(requests):
        assert event.tokens
        assert event.index not in finished, "a finished request emits nothing"
        parts[event.index] += event.tokens
        if event.generation is not None:
            finished[event.index] = event.generation
    for index, generation in finished.items():
        assert list(generation.tokens) == parts[index]
        assert generation.acceptance.emitted == len(generation.tokens)
        assert generation.prompt_tokens == len(requests[index].prompt)
        assert 0 < generation.first_token_seconds <= generation.seconds


def test_eos_ends_the_text_and_is_its_last_token(target: TargetModel, draft: RecallDraft) -> None:
    free = tokens_of(Engine(target), Request((9, 4, 11), 40, eos=()))
    eos = free[12]
    target.model.generation_config.eos_token_id = eos
    try:
        for engine in (Engine(target), Engine(target, draft)):
            (event,) = [e for e in engine.run([Request((9, 4, 11), 40)]) if e.generation]
            assert event.generation is not None
            assert event.generation.tokens == free[: free.index(eos) + 1]
            assert event.generation.finish_reason == "stop"
            assert tokens_of(engine, Request((9, 4, 11), 40, eos=())) == free
    finally:
        target.model.generation_config.eos_token_id = 2


@pytest.mark.parametrize("with_draft", [False, True])
def test_the_context_is_used_to_its_last_place(
    target: TargetModel, draft: RecallDraft, with_draft: bool
) -> None:
    prompt = tuple(3 + i % 40 for i in range(CONTEXT - 20))
    engine = Engine(target, draft if with_draft else None)
    (event,) = [e for e in engine.run([Request(prompt, 100, eos=())]) if e.generation]
    assert event.generation is not None
    assert event.generation.finish_reason == "context"
    assert len(event.generation.tokens) == 20


def test_bad_requests_are_refused_before_anything_runs(target: TargetModel) -> None:
    engine = Engine(target)
    with pytest.raises(UserError, match="context"):
        next(engine.run([Request((3,) * CONTEXT, 5)]))
    with pytest.raises(UserError, match="vocabulary"):
        next(engine.run([Request((3, 5000), 5)]))
    with pytest.raises(UserError, match="empty"):
        Request((), 5)
    with pytest.raises(UserError, match="max_new_tokens"):
        Request((3,), 0)
    for stop in ("", "\ud83d"):
        with pytest.raises(UserError, match="stop string"):
            Request((3,), 5, stop=(stop,))
    assert list(engine.run([])) == []


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"logprobs": -1}, "logprobs is -1"),
        ({"logprobs": 2.5}, "logprobs is 2.5"),
        ({"eos": 5}, "eos"),
        ({"eos": 0}, "eos"),
        ({"eos": ("a",)}, "eos"),
        ({"prompt": (1.5, 2)}, "prompt"),
        ({"prompt": ("a",)}, "prompt"),
    ],
)
def test_what_would_fail_inside_a_step_is_refused_before(wrong: dict[str, Any], named: str) -> None:
    """There it would end the requests that run beside it."""
    with pytest.raises(UserError, match=named):
        Request(**({"prompt": (3, 4)} | wrong))


def test_a_tree_deeper_than_the_draft_is_refused(target: TargetModel, draft: RecallDraft) -> None:

    with pytest.raises(UserError, match="17 deep"):
        Engine(target, draft, "chain:17")


def test_stop_strings_need_a_tokenizer(target: TargetModel) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        next(Engine(target).run([Request((3, 4), 5, stop=("x",))]))


def test_the_clock_sees_every_phase(target: TargetModel, draft: RecallDraft) -> None:
    clock = PhaseClock()
    list(Engine(target, draft).run([Request((3, 4, 5), 12, eos=())], clock))
    assert set(clock.seconds) == {"prefill", "draft", "run", "verify", "keep"}
    assert clock.decoding_seconds == pytest.approx(sum(clock.seconds.values()) - clock.seconds["prefill"])
    assert clock.steps > 0
