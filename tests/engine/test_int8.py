"""The text stays that of plain decoding where a draft has int8 weights, which tiny drafts have not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clover.cpu.linear import Int8Linear, can_have_int8
from clover.drafting import parse_tree
from clover.drafts import DraftModel, RecallDraft
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine
from clover.target import TargetModel
from tests.engine.compiled.test_runner import make_draft
from tests.engine.test_lossless import SETTINGS, requests_of, run, tokens_of
from tests.engine.test_policy import WITHOUT_DRAFT, ScriptedPolicy, random_choices
from tests.families import by_turns, tiny_config, tiny_model

NEW = 24
pytestmark = pytest.mark.skipif(not can_have_int8(torch.zeros(256, 256)), reason="no fast operator here")


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """Wide enough for all of a draft's layers to have int8 weights."""
    config = tiny_config("llama")
    config.hidden_size, config.intermediate_size, config.vocab_size = 256, 320, 512
    config.max_position_embeddings = 256
    return TargetModel(tiny_model("llama", torch.float32, config=config))


@pytest.fixture
def int8_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each product with a int8 weight."""
    products, run_one = list[int](), Int8Linear.__call__

    def counted(self: Int8Linear, inputs: torch.Tensor) -> torch.Tensor:
        products.append(inputs.numel() // inputs.shape[-1])
        return run_one(self, inputs)

    monkeypatch.setattr(Int8Linear, "__call__", counted)
    return products


def livened(system: str, target: TargetModel, **options: Any) -> DraftModel:
    """A draft whose recurrent layer, if it has one, is not the identity that it starts as."""
    draft = make_draft(system, target, **options)
    if isinstance(draft, RecallDraft):
        torch.nn.init.normal_(draft.layer.output.weight, std=0.05)
    return draft


@pytest.fixture(scope="module")
def plain(target: TargetModel) -> list[tuple[int, ...]]:
    """The tokens of `requests_of(5, SETTINGS, NEW)` without a draft."""
    return tokens_of(run(Engine(target), requests_of(5, SETTINGS, NEW)))


@pytest.mark.parametrize("system", by_turns(sorted(SYSTEMS)))
def test_choices_refilled_rows_and_a_reduced_vocabulary(
    target: TargetModel, system: str, plain: list[tuple[int, ...]], int8_rows: list[int]
) -> None:
    requests = requests_of(5, SETTINGS, NEW)
    draft = livened(system, target, num_heads=5)
    for seed, (reduced, rows) in enumerate(((False, 5), (True, 2))):  # with 2, rows take the places of others
        if reduced:
            draft.reduce_vocabulary(torch.arange(0, 512, 2))
        policy = ScriptedPolicy(
            random_choices(draft, ("chain:4", "clover2", "budget:3"), seed, WITHOUT_DRAFT)
        )
        engine = Engine(target, draft, policy=policy)
        found = {
            e.index: e.generation.tokens for e in engine.run(requests, max_sequences=rows) if e.generation
        }
        assert [found[index] for index in range(len(requests))] == plain
    assert min(int8_rows) < 3 and max(int8_rows) > 4


@pytest.mark.long
def test_drawn_trees_and_compiled_steps_have_exact_weights(target: TargetModel, int8_rows: list[int]) -> None:
    requests, draft = requests_of(1, SETTINGS[:1], 8), livened("recall", target)
    expected = tokens_of(run(Engine(target), requests))
    assert not int8_rows, "there is no draft"
    for engine in (
        Engine(target, draft, parse_tree("drawn:chain:3")),
        Engine(target, draft, parse_tree("chain:3"), compile="eager"),
    ):
        assert tokens_of(run(engine, requests)) == expected
    assert not int8_rows
    assert tokens_of(run(Engine(target, draft, parse_tree("chain:3")), requests)) == expected
    assert int8_rows


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_a_draft_that_is_not_usable_is_left_out(target: TargetModel, system: str) -> None:
    requests, draft = requests_of(2, SETTINGS[:2], 6), make_draft(system, target)
    for weight in draft.parameters():
        torch.nn.init.constant_(weight, float("nan"))
    draft.usable = False
    expected = tokens_of(run(Engine(target), requests))
    for tree in ("chain:3", "budget:4", "drawn:chain:2"):
        engine = Engine(target, draft, parse_tree(tree))
        assert engine.draft is None and tokens_of(run(engine, requests)) == expected
