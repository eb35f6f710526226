"""Log-probabilities and trees in the events of a step: those of the model itself, whatever drafts."""

from __future__ import annotations

import pytest
import torch

from clover.engine import Engine, Request, StepEvent
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.engine.test_scheduler import engine_of
from tests.families import VOCAB, tiny_model

PARAMS = (SamplingParams(), SamplingParams(temperature=0.8, seed=1, frequency_penalty=1.0, top_k=5))
PROMPTS = ((5, 6, 7, 5, 6, 7, 5), (3, 4))


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def events_of(engine: Engine, requests: list[Request]) -> list[list[StepEvent]]:
    found: list[list[StepEvent]] = [[] for _ in requests]
    for event in engine.run(requests):
        found[event.index].append(event)
    return found


@pytest.mark.parametrize(
    ("system", "tree"),
    [(None, None), ("clover2", "clover2"), ("clover2", "drawn:chain:3")],
)
def test_logprobs_are_those_of_the_model_before_any_processor(
    target: TargetModel, system: str | None, tree: str | None
) -> None:
    requests = [
        Request(prompt, 9, params, eos=(), logprobs=count)
        for prompt, params, count in zip(PROMPTS, PARAMS, (3, 0), strict=True)
    ]
    for request, events in zip(requests, events_of(engine_of(target, system, tree), requests), strict=True):
        tokens = [token for event in events for token in event.tokens]
        told = [one for event in events for one in event.logprobs]
        text = torch.tensor([[*request.prompt, *tokens]])
        logits = target.model(input_ids=text, use_cache=False).logits[0, len(request.prompt) - 1 : -1]
        expected = logits.float().log_softmax(-1)
        assert len(told) == len(tokens) == 9
        for row, token, one in zip(expected, tokens, told, strict=True):
            assert one.logprob == pytest.approx(float(row[token]), abs=1e-4)
            best = row.topk(request.logprobs or 0)
            assert [token for token, _ in one.top] == best.indices.tolist()
            assert [value for _, value in one.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_more_logprobs_than_tokens_are_all_of_them(target: TargetModel) -> None:
    [[event]] = events_of(Engine(target), [Request((3,), 1, logprobs=10 * VOCAB)])
    assert sorted(token for token, _ in event.logprobs[0].top) == list(range(VOCAB))


@pytest.mark.parametrize(
    ("system", "tree", "copied"),
    [("clover2", "clover2", False), ("clover2", "lookup", True), (None, None, False)],
)
def test_what_was_accepted_is_on_the_path_of_the_tree(
    target: TargetModel, system: str | None, tree: str | None, copied: bool
) -> None:
    from clover.drafting import FixedPolicy, LookupDrafter

    engine = engine_of(target, system, None if copied else tree)
    if copied:
        engine = Engine(target, policy=FixedPolicy(LookupDrafter(4)))
    requests = [Request(PROMPTS[0], 20, PARAMS[0], eos=(), show_trees=True), Request(PROMPTS[1], 20, eos=())]
    shown, silent = events_of(engine, requests)
    assert all(event.drafted is None for event in silent)
    for event in shown:
        drafted = event.drafted
        assert drafted is not None and all(-1 <= parent < at for at, parent in enumerate(drafted.parents))
        accepted = tuple(drafted.tokens[node] for node in drafted.path)
        assert accepted[: len(event.tokens) - 1] == event.tokens[:-1]
        above = [drafted.parents[node] for node in drafted.path]
        assert above == [-1, *drafted.path][: len(above)]
        assert drafted.copied == copied
    assert any(event.drafted and event.drafted.tokens for event in shown) == (system is not None)
