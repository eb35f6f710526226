"""Every draft system with every kind of tree: the tokens of plain decoding wherever token matching verifies them.

Trees that are drawn are verified by recursive rejection sampling: greedy sequences get the tokens of plain decoding
too, sampled ones others of the same distribution (`test_drawn.py`), which do not depend on the batch.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from clover.data import Sample
from clover.drafting import Tree, parse_tree
from clover.drafts import load_draft
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, EngineLimits, Generation, Request
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.train import TrainConfig, prepare, train
from tests.engine.test_lossless import requests_of, run, tokens_of
from tests.families import VOCAB, by_turns, tiny_model
from tests.oracle import OracleDraft, texts_of_rows

FIXED = (
    "chain:4",
    "clover2",
    "medusa",
    "budget:4",
    "budget:12:0.95",
    "eagle2:60",
    "eagle2:8:3:4",
    "chain:9:0.05",
)
DRAWN = ("drawn:chain:4", "drawn:clover2")
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=5)
SETTINGS = (SAMPLED, GREEDY, SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.3, seed=6))
LONG = 10


def requests() -> list[list[Request]]:
    """Batches of 1 and 4, greedy and sampled."""
    single = requests_of(1, [GREEDY], LONG), requests_of(1, [SAMPLED], LONG)
    return [*single, requests_of(4, SETTINGS, LONG)]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module")
def plain(target: TargetModel) -> list[list[Generation]]:
    return [run(Engine(target), batch) for batch in requests()]


@pytest.fixture(scope="module", params=by_turns(sorted(SYSTEMS)))
def draft(request: pytest.FixtureRequest, target: TargetModel) -> Any:
    torch.manual_seed(1)
    return SYSTEMS[request.param].from_target(target, num_heads=5).to(target.dtype).eval()


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize("tree", FIXED)
def test_fixed_trees_give_the_tokens_of_plain_decoding(
    target: TargetModel, plain: list[list[Generation]], draft: Any, tree: str
) -> None:
    engine = Engine(target, draft, parse_tree(tree))
    for batch, expected in zip(requests(), plain, strict=True):
        assert tokens_of(run(engine, batch)) == tokens_of(expected)


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize("tree", DRAWN)
def test_drawn_trees_give_greedy_tokens_and_the_same_ones_in_every_batch(
    target: TargetModel, plain: list[list[Generation]], draft: Any, tree: str
) -> None:
    engine = Engine(target, draft, parse_tree(tree))
    for batch, expected in zip(requests(), plain, strict=True):
        found = run(engine, batch)
        assert [run(engine, [request])[0].tokens for request in batch] == tokens_of(found)
        greedy = [i for i, request in enumerate(batch) if request.params.greedy]
        assert [found[i].tokens for i in greedy] == [expected[i].tokens for i in greedy]


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_a_draft_trained_for_heads_that_do_not_divide_h_gives_the_tokens_of_plain_decoding(
    system: str, tmp_path: Path
) -> None:
    target = TargetModel(tiny_model("qwen3_six_heads"))
    texts = [
        Sample(torch.arange(i, i + 16).int() % VOCAB, torch.ones(16, dtype=torch.bool)) for i in range(9)
    ]
    config = TrainConfig(str(tmp_path / "draft"), system=system, max_steps=2, batch_tokens=64)
    config, draft = prepare(config, target)
    train(config, target, texts, draft, console=Console(file=StringIO()))
    engine = Engine(target, load_draft(tmp_path / "draft", target))
    for batch in requests():
        assert tokens_of(run(engine, batch)) == tokens_of(run(Engine(target), batch))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "phi3"])
def test_a_draft_that_is_often_right_gives_the_tokens_of_plain_decoding(family: str) -> None:
    target = TargetModel(tiny_model(family))
    for number, batch in enumerate(
        (requests_of(1, SETTINGS), requests_of(4, SETTINGS), requests_of(4, [GREEDY]))
    ):
        expected = run(Engine(target), batch)
        texts = texts_of_rows((r.prompt for r in batch), tokens_of(expected))
        for tree in (*FIXED[2:], *(DRAWN if number == 2 else ())):
            found = run(oracle_engine(target, texts, parse_tree(tree)), batch)
            assert tokens_of(found) == tokens_of(expected), tree
            assert sum(g.acceptance.steps for g in found) < sum(g.acceptance.steps for g in expected)


def oracle_engine(target: TargetModel, texts: list[list[int]], tree: Tree) -> Engine:
    return Engine(target, OracleDraft(target, texts, spread=1), tree, limits=EngineLimits(prefill_chunk=4))  # type: ignore[arg-type]


def test_the_default_tree_is_as_deep_as_the_draft(target: TargetModel) -> None:
    for depth in (1, 3):
        draft = SYSTEMS["clover2"].from_target(target, num_heads=depth).to(target.dtype).eval()
        drafter = Engine(target, draft).drafter
        assert drafter is not None
        assert drafter.max_depth == depth


@pytest.mark.parametrize("name", ["clover1", "clover2", "eagle"])
def test_a_draft_in_training_drafts_as_one_that_is_not(name: str) -> None:
    """Layers of another form than LLaMA's run their own code then, too."""
    target = TargetModel(tiny_model("phi3", torch.float32))
    draft = SYSTEMS[name].from_target(target).train()
    found = run(Engine(target, draft, "own"), [Request((3, 4, 5), 8)])
    assert tokens_of(found) == tokens_of(run(Engine(target), [Request((3, 4, 5), 8)]))
    assert draft.training and not draft.for_inference().training
