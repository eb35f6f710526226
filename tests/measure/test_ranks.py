"""Rank paths tell exactly what the engine accepts, with any static tree; and how often each head is right."""

from __future__ import annotations

from functools import reduce
from operator import add
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.drafting import StaticTree
from clover.drafts import DraftModel, RecallDraft
from clover.drafts.loading import SYSTEMS
from clover.drafts.medusa import MedusaDraft
from clover.engine import Engine, Request
from clover.measure.ranks import MAX_HEADS, TOP, HeadAccuracy, RankPath, rank_texts
from clover.measure.timing import time_decoding
from clover.measure.trees import exact_tau
from clover.metrics import Acceptance
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE, TreeShape
from tests.families import VOCAB, tiny_model
from tests.oracle import OracleDraft

TREES = (TreeShape.chain(3), CLOVER2_TREE.cut(3), TreeShape.from_paths([[0], [4], [9], [4, 1], [9, 9]]))
TEXTS = ((5, 6, 8, 6, 8, 6, 12, 5, 6, 8, 4), (7, 7, 9), (10,), ())


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def requests(temperature: float = 0.0) -> list[Request]:
    """Prompts of several lengths, in an order that is not that of their lengths."""
    prompts = [(3, 4, 5, 6, 7), (8, 8), (9, 10, 11), (3, 9), (12, 5, 9, 4, 4, 4, 7)]
    return [
        Request(prompt, 12 + i, SamplingParams(temperature=temperature, seed=i), eos=())
        for i, prompt in enumerate(prompts)
    ]


def decoded(engine: Engine, some: list[Request]) -> Acceptance:
    events = (event for request in some for event in engine.run([request]))
    return reduce(add, (event.generation.acceptance for event in events if event.generation), Acceptance())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("draft", ["recall", "medusa", "part of the vocabulary"])
def test_tau_from_ranks_is_the_engines(target: TargetModel, draft: str, temperature: float) -> None:
    torch.manual_seed(1)
    system = MedusaDraft if draft == "medusa" else RecallDraft
    model = system.from_target(target, num_heads=4).eval()
    if draft == "part of the vocabulary":
        model.reduce_vocabulary(torch.arange(0, target.vocab_size, 2))
    some = requests(temperature)
    texts = time_decoding(Engine(target), some).texts
    paths = rank_texts(target, model, some, texts, 8)
    for shape in TREES:
        expected = decoded(Engine(target, model, StaticTree(shape)), some)
        assert exact_tau(paths, frozenset(shape.paths[1:])) == expected.tau
    assert any(0 in path for some in paths for path in some), "nothing was ever right"


def order(logits: Tensor) -> list[int]:
    """All tokens, the best first; of equals the smaller."""
    values = logits.tolist()
    return sorted(range(len(values)), key=lambda token: (-values[token], token))


def slow_paths(target: TargetModel, draft: DraftModel, prompt: tuple[int, ...], new: tuple[int, ...]) -> Any:
    """The rank path at each new token, each by a session of its own."""
    text, found = torch.tensor([[*prompt, *new]]), []
    read = target.train_forward(text, draft.config.hidden_state).draft_hidden_states
    for at in range(len(prompt) - 2, len(prompt) - 2 + len(new)):
        session, path = draft.new_session(1, text.shape[1]), list[int]()
        logits = session.commit(read[:, : at + 1], text[:, 1 : at + 2], [at + 1])[0]
        for place in range(at + 2, min(text.shape[1], at + 2 + min(draft.max_depth, MAX_HEADS))):
            if path:
                logits = session.advance(torch.zeros(1, 1, dtype=torch.long), text[:, place - 1 : place])[
                    0, 0
                ]
            path.append(order(logits).index(int(text[0, place])))
        found.append(tuple(path))
    return tuple(found)


@torch.no_grad()
@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_ranks_are_those_of_a_loop_over_positions(target: TargetModel, system: str) -> None:
    torch.manual_seed(2)
    draft = SYSTEMS[system].from_target(target).eval()
    prompts, seen = [(3, 9, 4), (5, 6, 5, 6), (7, 8), (9, 10)], list[float]()
    some = [Request(prompt, 1) for prompt in prompts]
    found = rank_texts(target, draft, some, TEXTS, MAX_HEADS, seen.append)
    assert found == [slow_paths(target, draft, *pair) for pair in zip(prompts, TEXTS, strict=True)]
    assert len(found[0][0]) == min(draft.max_depth, MAX_HEADS) > 1 and seen == [1.0]


@torch.no_grad()
def test_the_session_says_what_training_says(target: TargetModel) -> None:
    """Depth d at t is what `forward` gives at [d, :, t], for a draft that trains all its depths."""
    torch.manual_seed(1)
    draft, text = RecallDraft.from_target(target, num_heads=5).eval(), torch.tensor([(3, 9, *TEXTS[0])])
    outputs = draft(target.train_forward(text).draft_hidden_states, text)
    logits = draft.train_logits(outputs.movedim(0, -2))[0]  # [T, D, V]
    (paths,) = rank_texts(target, draft, [Request((3, 9), 1)], TEXTS[:1], 5)
    for at, path in enumerate(paths):
        assert path == tuple(
            order(logits[at, depth]).index(TEXTS[0][at + depth]) for depth in range(len(path))
        )


def test_a_prompt_of_one_token_has_no_draft_at_its_first_step(target: TargetModel) -> None:
    draft, some = RecallDraft.from_target(target, num_heads=2).eval(), [Request((8,), 9)]
    (paths,) = rank_texts(target, draft, some, TEXTS[:1], 8)
    assert paths[0] == () and len(paths) == len(TEXTS[0]) and len(paths[1]) > 1


def test_no_texts(target: TargetModel) -> None:
    assert rank_texts(target, RecallDraft.from_target(target), [], []) == []
    assert HeadAccuracy.of([], 3).totals == []


def test_long_texts_are_run_in_several_batches() -> None:
    target, seen = TargetModel(tiny_model("llama", torch.float32)), list[float]()
    draft = MedusaDraft.from_target(target, num_heads=2).eval()
    some = [Request((3, 9, 4) * length, 1) for length in (1400, 1, 1400, 1400, 1400)]
    found = rank_texts(target, draft, some, [(4, 5)] * 5, 2, seen.append)
    assert seen == [0.6, 1.0]
    assert found[1] == rank_texts(target, draft, some[1:2], [(4, 5)], 2)[0]


class FixedSession:
    """Says the same whatever comes."""

    def __init__(self, logits: Tensor):
        self.logits = logits

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        return self.logits.expand(len(counts), -1)


def test_equal_logits_stand_in_the_order_of_tokens_and_impossible_tokens_nowhere(target: TargetModel) -> None:
    logits = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
    logits[[4, 7, 9]] = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    draft: Any = SimpleNamespace(
        config=SimpleNamespace(hidden_state="post_norm"),
        session_tokens=None,
        target=target,
        max_depth=1,
        new_session=lambda *_: FixedSession(logits),
    )
    (paths,) = rank_texts(target, draft, [Request((3, 3), 4)], [(7, 4, 9, 0)], 8)
    assert paths == ((0,), (1,), (2,), (VOCAB,))


# -- how often each head is right --------------------------------------------------------------------------------------


def oracle(target: TargetModel, spread: int) -> tuple[OracleDraft, list[tuple[RankPath, ...]], list[int]]:
    """A draft that has the text's next token at a known rank, the rank paths, and the text."""
    text = [3, 9, *range(5, 23)]
    draft = OracleDraft(target, [text], spread)
    paths = rank_texts(target, draft, [Request(tuple(text[:2]), 1)], [tuple(text[2:])], MAX_HEADS)  # type: ignore[arg-type]
    return draft, paths, text


def test_a_draft_that_knows_the_text_is_always_right(target: TargetModel) -> None:
    _, paths, _ = oracle(target, spread=0)
    measured = HeadAccuracy.of(paths, MAX_HEADS)
    assert measured.totals == [18 - head for head in range(MAX_HEADS)]
    assert measured.forced == measured.chained
    assert all(share.value == 1 for row in measured.shares(measured.forced) for share in row)


def test_a_draft_that_is_right_at_known_ranks(target: TargetModel) -> None:
    draft, paths, text = oracle(target, spread=12)
    measured = HeadAccuracy.of(paths, MAX_HEADS)
    places = {at: order(draft.opinion(0, at)).index(text[at]) for at in range(2, 20)}
    assert max(places.values()) >= 10
    for head in range(MAX_HEADS):
        ends = [at for at in places if at - head >= 2]
        chains = [at for at in ends if all(places[at - back] == 0 for back in range(1, head + 1))]
        for place, size in enumerate(TOP):
            assert measured.pairs(measured.forced, head, place)[0][0] == sum(places[at] < size for at in ends)
            assert measured.pairs(measured.chained, head, place)[0][0] == sum(
                places[at] < size for at in chains
            )


def test_shares_have_errors_over_texts() -> None:
    found = HeadAccuracy.of([((0,),), ((4,),), ((50,),)], 2)
    assert found.positions == ((1, 0),) * 3
    share = found.shares(found.forced)[0][3]
    assert share.value == pytest.approx(2 / 3) and share.error == pytest.approx(1 / 3)
    json = found.to_dict()
    assert json["positions"] == [3, 0] and json["top"] == list(TOP) and json["texts"] == 3
    assert json["forced"][0] == pytest.approx([1 / 3] * 3 + [2 / 3] * 2)
    assert found.shares(found.forced)[1][0].value == 0.0  # of nothing


def test_ranks_stop_at_the_position_where_it_is_enough() -> None:
    target, text = TargetModel(tiny_model("llama")), (4, 5, 6, 7, 8, 9)
    draft = MedusaDraft.from_target(target, num_heads=2).eval()
    some = [Request((3, 9), 6), Request((3, 9, 2, 1), 6)]
    whole, asked = rank_texts(target, draft, some, [text] * 2), iter([False, False, True])
    part = rank_texts(target, draft, some, [text] * 2, enough=lambda: next(asked))
    assert [len(paths) for paths in part] == [3, 1]
    assert part == [paths[: len(own)] for paths, own in zip(whole, part, strict=True)]
