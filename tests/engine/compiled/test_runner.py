"""Compiled steps: the same tokens, few graphs, and no storage that moves while a graph runs.

The backend "eager" traces as the others do and then runs the operations as they are: fullgraph, so a break would raise.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from clover.cpu import linear
from clover.cpu.linear import FastLinear
from clover.drafting import PLAIN_DRAFTER, parse_tree
from clover.drafts import DraftModel
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, EngineLimits, PrefixStore, Request
from clover.errors import UserError
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.engine.test_lossless import SETTINGS, requests_of, run, tokens_of
from tests.engine.test_policy import MovedClock, ScriptedPolicy
from tests.families import VOCAB, tiny_config, tiny_model

pytestmark = pytest.mark.long

BACKEND = "eager"
TREE = "paths:0,1,00,000"
NEW = 24


@pytest.fixture(autouse=True)
def _no_graphs_before() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """With one layer, since tracing takes its time."""
    config = tiny_config("llama")
    config.max_position_embeddings, config.num_hidden_layers = 512, 1
    return TargetModel(tiny_model("llama", config=config))


def make_draft(system: str, target: TargetModel, **options: Any) -> DraftModel:
    torch.manual_seed(1)
    return SYSTEMS[system].from_target(target, **options).to(target.dtype).bind(target).eval()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def refilled(engine: Engine, requests: list[Request], rows: int) -> list[tuple[int, ...]]:
    """Tokens of requests of which so many run at once: the others take the places of those that finish."""
    found = {e.index: e.generation.tokens for e in engine.run(requests, max_sequences=rows) if e.generation}
    return [found[index] for index in range(len(requests))]


def one_request(params: SamplingParams, new_tokens: int = NEW) -> list[Request]:
    return [Request((5, 9, 4), new_tokens, params, eos=())]


def test_rows_that_finish_and_are_refilled(target: TargetModel) -> None:
    requests = requests_of(6, SETTINGS, NEW)
    engine = Engine(target, make_draft("clover2", target), parse_tree(TREE), compile=BACKEND)
    assert refilled(engine, requests, rows=4) == tokens_of(run(Engine(target), requests))
    assert graphs() >= 6, "draft and target, for one row, for two and for four"


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"clover2"}))
def test_every_system(target: TargetModel, system: str) -> None:
    engine = Engine(target, make_draft(system, target, num_heads=3), parse_tree(TREE), compile=BACKEND)
    requests = one_request(SETTINGS[1])
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
    assert graphs() == 2


@pytest.mark.parametrize("tree", ["budget:4", "eagle2:6:2:3"])
def test_dynamic_trees_are_captured(target: TargetModel, tree: str) -> None:
    requests = one_request(SETTINGS[0])
    engine = Engine(target, make_draft("clover2", target), parse_tree(tree), compile=BACKEND)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
    assert graphs() == 2


@pytest.mark.parametrize("tree", ["budget:16", "eagle2:30"])
def test_a_draft_may_run_more_nodes_than_a_dynamic_tree_keeps(target: TargetModel, tree: str) -> None:
    draft = make_draft("eagle", target)
    request = Request(tuple(random.Random(3).choices(range(3, VOCAB), k=100)), 24, eos=())
    captured = Engine(target, draft, parse_tree(tree), compile=BACKEND)
    assert tokens_of(run(captured, [request])) == tokens_of(run(Engine(target), [request]))


@pytest.mark.parametrize(
    ("system", "tree"),
    [("clover2", "chain:3:0.5"), ("clover2", "drawn:chain:2")],
)
def test_what_is_not_captured_runs_beside_the_compiled_target(
    target: TargetModel, system: str, tree: str
) -> None:
    requests = one_request(SETTINGS[0])
    draft = make_draft(system, target)
    engine = Engine(target, draft, parse_tree(tree) if tree else None, compile=BACKEND)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
    assert graphs() == 1


def test_plain_decoding_is_compiled_too(target: TargetModel) -> None:
    requests = requests_of(3, SETTINGS, NEW)
    plain = Engine(target, compile=BACKEND)
    assert refilled(plain, requests, rows=2) == tokens_of(run(Engine(target), requests))
    assert graphs() >= 2


@pytest.mark.parametrize("family", ["opt", "gemma3_text"])
def test_other_families(family: str) -> None:
    """With learned positions, and with windows that are shorter than the text; up to the end of the context."""
    config = tiny_config(family)
    config.max_position_embeddings, config.sliding_window = 32, 12
    target = TargetModel(tiny_model(family, config=config))
    requests = one_request(SETTINGS[0], 40)
    engine = Engine(target, make_draft("clover2", target), parse_tree(TREE), compile=BACKEND)
    found = run(engine, requests)
    assert tokens_of(found) == tokens_of(run(Engine(target), requests))
    assert {one.finish_reason for one in found} == {"context"}


@pytest.mark.parametrize("params", SETTINGS[:2])
def test_copies_are_captured(target: TargetModel, params: SamplingParams) -> None:
    """The same steps as without graphs, of a draft that copies nearly all that it proposes."""
    draft = make_draft("recall", target, copy_shares=[0.9] * 4, draft_vocab_size=20)
    requests = requests_of(2, [params], 40)
    found, expected = (
        run(Engine(target, draft, parse_tree("chain:3"), compile=backend), requests)
        for backend in (BACKEND, False)
    )
    assert tokens_of(found) == tokens_of(run(Engine(target), requests))
    assert [one.acceptance for one in found] == [one.acceptance for one in expected]
    assert graphs() >= 2


@pytest.mark.parametrize("params", SETTINGS[:2])
def test_a_reduced_vocabulary(target: TargetModel, params: SamplingParams) -> None:
    draft = make_draft("clover2", target)
    draft.reduce_vocabulary(torch.arange(1, VOCAB, 2))
    requests = one_request(params)
    engine = Engine(target, draft, parse_tree("chain:3"), compile=BACKEND)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
    assert graphs() == 2


def test_the_automatic_choice_between_trees(target: TargetModel) -> None:
    requests = one_request(SETTINGS[1], 6 * NEW)
    draft = make_draft("clover2", target)
    policy = MovedClock(draft, compiled=True)
    engine = Engine(target, draft, policy=policy, compile=BACKEND)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
    assert sum(a is not b for a, b in zip(policy.drafters, policy.drafters[1:])) >= 2


def test_the_automatic_choice_with_refilled_rows_and_a_reduced_vocabulary(target: TargetModel) -> None:
    requests = requests_of(4, SETTINGS, 2 * NEW)
    draft = make_draft("clover2", target)
    draft.reduce_vocabulary(torch.arange(1, VOCAB, 2))
    policy = MovedClock(draft, compiled=True)
    engine = Engine(target, draft, policy=policy, compile=BACKEND)
    assert refilled(engine, requests, rows=2) == tokens_of(run(Engine(target), requests))
    assert len({id(drafter) for drafter in policy.drafters}) > 1


def test_long_catching_up_runs_as_it_is(target: TargetModel) -> None:
    draft = make_draft("eagle", target, num_heads=3)
    chain = parse_tree("chain:3").drafter(draft)
    requests = one_request(SETTINGS[1], 2 * NEW)
    policy = ScriptedPolicy([*[chain] * 3, *[PLAIN_DRAFTER] * 9])
    engine = Engine(target, draft, limits=EngineLimits(prefill_chunk=3), policy=policy, compile=BACKEND)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
    assert max(outcome.backlog for outcome in policy.outcomes) > 8, "more than a graph takes in"


def test_a_conversation_keeps_its_caches(target: TargetModel) -> None:
    engine = Engine(target, make_draft("medusa", target), parse_tree("chain:2"), compile=BACKEND)
    store, prompt = PrefixStore(), (3, 9, 27, 31, 14)
    first = Request(prompt, 15, eos=(), keep=True)
    (said,) = [e.generation for e in engine.run([first], store=store) if e.generation]
    longer = Request((*prompt, *said.tokens, 5, 6), 15, eos=())
    again = [e.generation for e in engine.run([longer], store=store) if e.generation]
    assert again[0].cached_tokens >= len(prompt) + len(said.tokens) - 2
    assert tokens_of(again) == tokens_of(run(Engine(target), [longer]))


def test_graphs_are_as_many_as_sizes(target: TargetModel) -> None:
    """Lengths and texts make no new graph; each capacity makes one for the draft and one for the target."""
    engine = Engine(target, make_draft("clover2", target), parse_tree("chain:3"), compile=BACKEND)
    counts = []
    for new_tokens in (30, 200, 300, 400, 30):
        run(engine, [Request((5, 6, 7, new_tokens % VOCAB), new_tokens, eos=())])
        counts.append(graphs())
    assert counts == [2, 2, 4, 4, 4], "capacities of 256 and of 512 slots"


def test_compiled_engines_leave_the_model_as_it_is(target: TargetModel) -> None:
    draft = make_draft("clover1", target)
    engine = Engine(target, draft, compile=BACKEND)
    run(engine, requests_of(1, SETTINGS[:1], 5))
    for model in (target.model, draft):
        assert not any("forward" in vars(module) for module in model.modules())


def test_compiled_steps_make_no_packed_copy(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the target's weights as they are. Prompts, which run without compilation, pack what they use."""
    for name in ("MIN_ELEMENTS", "MIN_ELEMENTS_OF_ONE_ROW"):
        monkeypatch.setattr(linear, name, 1)
    config = tiny_config("llama")
    config.num_hidden_layers = 1
    large = TargetModel(tiny_model("llama", torch.float32, config=config))
    draft = make_draft("clover2", large)
    for compile in (BACKEND, False):
        engine = Engine(large, draft, parse_tree("chain:2"), compile=compile)
        layers = [*large.base.modules(), large.head.linear]
        products = [layer.product for layer in layers if isinstance(layer, FastLinear)]
        for product in products:
            product.made.clear()  # what probing the target has left
        run(engine, [Request((5,), 8, eos=())])
        assert any(product.made for product in products) == (not compile)


def test_an_unknown_backend_is_refused(target: TargetModel) -> None:
    with pytest.raises(UserError, match="no backend 'turbo'.*inductor"):
        Engine(target, compile="turbo")


def test_a_batch_has_rows_for_all_that_may_join(target: TargetModel) -> None:
    runner = Engine(target, compile=BACKEND).runner
    assert [runner.rows(1, most) for most in (1, 3)] == [1, 4]
