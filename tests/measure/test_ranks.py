"""Rank paths tell exactly what the engine accepts, with any static tree, greedy and sampled."""

from functools import reduce
from operator import add

import pytest
import torch

from clover.drafting import StaticTree
from clover.drafts import RecallDraft
from clover.drafts.medusa import MedusaDraft
from clover.engine import Engine, Request
from clover.measure.ranks import WIDTH, rank_texts
from clover.measure.timing import decode
from clover.measure.trees import exact_tau
from clover.metrics import Acceptance
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE, TreeShape
from tests.families import tiny_model
from tests.oracle import OracleDraft

TREES = (TreeShape.chain(3), CLOVER2_TREE.cut(3), TreeShape.from_paths([[0], [4], [9], [4, 1], [9, 9]]))


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def requests(temperature: float = 0.0) -> list[Request]:
    """Prompts of several lengths, down to one token, in an order that is not that of their lengths."""
    prompts = [(3, 4, 5, 6, 7), (8,), (9, 10, 11), (3, 9), (12, 5, 9, 4, 4, 4, 7)]
    return [
        Request(prompt, 12 + i, SamplingParams(temperature=temperature, seed=i), eos=())
        for i, prompt in enumerate(prompts)
    ]


def decoded(engine: Engine, some: list[Request]) -> Acceptance:
    events = (event for request in some for event in engine.run([request]))
    return reduce(add, (event.generation.acceptance for event in events if event.generation), Acceptance())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tau_from_ranks_is_the_engines(target: TargetModel, temperature: float) -> None:
    for system in (RecallDraft, MedusaDraft):
        draft = system.from_target(target, num_heads=4).eval()
        some = [request for request in requests(temperature) if len(request.prompt) > 1]
        texts = decode(Engine(target), some).texts
        assert list(map(len, texts)) == [request.max_new_tokens for request in some]
        paths = rank_texts(target, draft, some, texts, 8)
        for shape in TREES:
            expected = decoded(Engine(target, draft, StaticTree(shape)), some)
            assert exact_tau(paths, frozenset(shape.paths[1:])) == expected.tau
        assert any(any(path) for some in paths for path in some), "nothing was ever right"


def test_ranks_are_where_an_oracle_put_the_token(target: TargetModel) -> None:
    request = requests()[0]
    (new,) = decode(Engine(target), [request]).texts
    text = [*request.prompt, *new]
    draft = OracleDraft(target, [text], spread=12)
    paths = rank_texts(target, draft, [request], [new], 8)  # type: ignore[arg-type]
    expected = []
    for at in range(len(request.prompt), len(text)):
        ranks = [rank_of_the_token(draft, text, at + depth) for depth in range(8) if at + depth < len(text)]
        wide = next((place for place, rank in enumerate(ranks) if rank >= WIDTH), len(ranks))
        expected.append(tuple(ranks[:wide]))
    assert paths == [tuple(expected)]


def rank_of_the_token(draft: OracleDraft, text: list[int], at: int) -> int:
    return draft.opinion(0, at).argsort(descending=True).tolist().index(text[at])


def test_a_prompt_of_one_token_has_no_draft_at_its_first_step(target: TargetModel) -> None:
    draft = RecallDraft.from_target(target, num_heads=2).eval()
    some = requests()[1:2]
    texts = decode(Engine(target), some).texts
    paths = rank_texts(target, draft, some, texts, 8)
    assert paths[0][0] == () and len(paths[0]) == len(texts[0])


def test_a_draft_of_a_part_of_the_vocabulary_ranks_in_the_targets_numbering(target: TargetModel) -> None:
    draft = RecallDraft.from_target(target, num_heads=3).eval()
    draft.reduce_vocabulary(torch.arange(0, target.vocab_size, 2))
    some = [request for request in requests() if len(request.prompt) > 1]
    texts = decode(Engine(target), some).texts
    paths = rank_texts(target, draft, some, texts, 8)
    for shape in TREES:
        expected = decoded(Engine(target, draft, StaticTree(shape)), some)
        assert exact_tau(paths, frozenset(shape.paths[1:])) == expected.tau


def test_no_texts() -> None:
    target = TargetModel(tiny_model("llama"))
    paths = rank_texts(target, RecallDraft.from_target(target), [], [])
    assert paths == []
