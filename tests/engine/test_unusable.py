"""Logits that are NaN, or infinite, end their own text with an error, and no other's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, PrefixStore, Request
from clover.engine.batch import Batch
from clover.engine.runner import Runner
from clover.engine.verifiers import finite_counts
from clover.errors import UserError
from clover.sampling import SamplingParams
from clover.target import TargetModel, TargetOutput
from clover.tree import TokenTree
from clover.verify import Verified
from tests.engine.test_lossless import run, tokens_of
from tests.families import tiny_model
from tests.oracle import OracleDraft

BROKEN = 7  # the token whose embedding is NaN, as float16 makes of some models
GREEDY, SAMPLED = (
    SamplingParams(),
    SamplingParams(temperature=0.9, top_p=0.95, banned_tokens=(BROKEN,), seed=3),
)
# How tokens are chosen, and the sequences that run at once. The other pairs are in the long set.
TURNS = [
    (GREEDY, 2),
    (SAMPLED, 5),
    *(pytest.param(*one, marks=pytest.mark.long) for one in ((GREEDY, 5), (SAMPLED, 2))),
]
TREES = ("plain", "lookup", "medusa", "budget:5", "drawn:clover2")


@pytest.fixture(scope="module")
def target() -> TargetModel:
    model = tiny_model("llama")
    target = TargetModel(model)
    with torch.no_grad():
        target.embedding_weight[BROKEN] = torch.nan
        target.lm_head_weight[BROKEN] = 0  # if it is tied, no logit is NaN for this reason
    return target


def broken_engine(target: TargetModel, tree: str) -> Engine:
    torch.manual_seed(1)
    draft = SYSTEMS["recall"].from_target(target).to(target.dtype).eval()
    return Engine(target, draft, tree)


def drafting_engine(target: TargetModel, tree: str, tokens: list[int]) -> Engine:
    """An engine whose draft proposes these tokens alone."""
    torch.manual_seed(2)
    draft = SYSTEMS["clover2"].from_target(target, num_augmenting_layers=1, num_heads=4)
    draft = draft.to(target.dtype).eval()
    draft.reduce_vocabulary(torch.tensor(tokens))
    return Engine(target, draft, tree)


def requests_of(params: SamplingParams) -> list[Request]:
    """The second one has the broken token in its prompt."""
    prompts = [(3, 9, 27, 4, 5, 6), (5, BROKEN, *range(8, 30)), (11, 12), (13, 14, 15, 16), (17, 18, 19)]
    return [Request(prompt, 6 + 5 * i, params, eos=()) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("params", "most"), TURNS)
def test_only_its_own_text_ends(target: TargetModel, tree: str, params: SamplingParams, most: int) -> None:
    """Also texts that later have the memory of the broken one are those that they are alone."""
    requests, engine = requests_of(params), broken_engine(target, tree)
    expected = [tokens_of(run(engine, [one]))[0] for one in (requests[0], *requests[2:])]
    found, events = {}, engine.run(requests, max_sequences=most)
    with pytest.raises(
        UserError, match=r"prompt 2: the target's logits are NaN or infinite in float64; .*load"
    ):
        for event in events:
            if event.generation is not None:
                found[event.index] = event.generation.tokens
    assert [found[index] for index in (0, 2, 3, 4)] == expected


@pytest.mark.parametrize(
    ("tree", "tokens"),
    [
        ("chain:3", [BROKEN]),
        ("budget:6", [BROKEN, 30, 31]),
        ("medusa", [BROKEN, *range(20, 45)]),
        ("drawn:chain:3", [BROKEN, 30, 31]),
    ],
)
@pytest.mark.parametrize(("params", "most"), TURNS)
def test_a_drafted_token_that_is_refused_ends_no_text(
    target: TargetModel, tree: str, tokens: list[int], params: SamplingParams, most: int
) -> None:
    """Every node of a tree gets NaN from it; texts are nevertheless those of plain decoding, token by token."""
    requests = [one for number, one in enumerate(requests_of(params)) if number != 1]
    expected = [tokens_of(run(broken_engine(target, "plain"), [one]))[0] for one in requests]
    engine, drafted = drafting_engine(target, tree, tokens), set[int]()

    class Watched(Runner):
        def run(self, batch: Batch, tree: TokenTree) -> TargetOutput:
            drafted.update(tree.tokens.flatten().tolist())
            return super().run(batch, tree)

    engine.runner = Watched(target, engine.hidden_state)
    found = {e.index: e.generation for e in engine.run(requests, max_sequences=most) if e.generation}
    assert BROKEN in drafted
    assert all(one.finish_reason == "length" for one in found.values())
    if not tree.startswith("drawn") or params is GREEDY:
        assert [found[index].tokens for index in range(4)] == expected


def test_what_was_written_before_is_kept_by_the_scheduler_and_not_by_the_store(target: TargetModel) -> None:
    """The token is forced as the third one: two are good, and what follows has no logits."""

    def force(texts: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, BROKEN if texts.shape[1] == 5 else 20] = 1e4
        return scores

    store, engine = PrefixStore(), Engine(target)
    decoding = engine.open(1, store=store)
    decoding.add(Request((3, 4, 5), 9, SamplingParams(process=force), eos=(), keep=True, logprobs=1))
    events = []
    while not decoding.idle:
        events += decoding.step()
    ended = events[-1].generation
    assert ended is not None and ended.finish_reason == "error" and ended.tokens == (20, 20, BROKEN)
    assert events[-1].tokens == () and len(store) == 0


class BreakingRunner(Runner):
    """Finds that the logits after some tokens of a text cannot be used, whatever leads to them.

    Of all texts, or of those whose prompt has `broken` tokens.
    """

    good_tokens, broken = 11, 0

    def verify(self, batch: Batch, tree: TokenTree, output: TargetOutput) -> Verified:
        found = super().verify(batch, tree, output)
        left = torch.tensor(
            [
                self.good_tokens - len(one.tokens) if self.broken in (0, len(one.request.prompt)) else 99
                for one in batch.sequences
            ]
        )
        return replace(found, finite=torch.minimum(found.counts, left))


def test_the_tokens_before_the_error_are_yielded() -> None:
    """The last ones one by one: each step that drafts beyond them runs again without its draft."""
    target, request = TargetModel(tiny_model("llama")), Request((3, 9, 27), 14, eos=())
    (tokens,) = tokens_of(run(Engine(target), [request]))
    draft = OracleDraft(target, [[*request.prompt, *tokens]], spread=0)
    engine = Engine(target, draft, "chain:3")  # type: ignore[arg-type]
    engine.runner = BreakingRunner(target, engine.hidden_state)
    events = []
    with pytest.raises(UserError, match="logits are NaN or infinite"):
        for event in engine.run([request]):
            events.append(event)
    assert [len(event.tokens) for event in events] == [4, 4, 1, 1, 1]
    assert [token for event in events for token in event.tokens] == list(tokens[:11])
    assert all(event.generation is None for event in events)


def test_how_many_texts_ended_with_an_error_is_told() -> None:
    target, request = TargetModel(tiny_model("llama")), Request((3, 9, 27), 14, eos=())
    engine = Engine(target)
    engine.runner = BreakingRunner(target, engine.hidden_state)
    with pytest.raises(UserError, match=r"^prompt 1 \(and 2 more of 3\): the target's logits are NaN"):
        list(engine.run([request] * 3))


def test_half_precision_names_a_wider_one() -> None:
    target = TargetModel(tiny_model("llama", torch.float16))
    with torch.no_grad():
        target.final_norm.weight.mul_(1e5)  # its products leave float16
    with pytest.raises(UserError, match="in float16; .* bfloat16 or float32"):
        list(Engine(target).run([Request((3, 4), 4)]))


def test_logits_that_cannot_be_used_are_counted() -> None:
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor(
        [
            [[0.0, 1.0], [nan, 1.0], [0.0, 1.0]],
            [[0.0, inf], [0.0, 1.0], [0.0, 1.0]],
            [[0.0, 1.0], [-inf, -inf], [-inf, 0.0]],
            [[0.0, -inf], [0.0, -inf], [nan, nan]],
        ]
    )
    path, counts = torch.tensor([[0, 1, 2], [0, 1, 1], [0, 2, 1], [0, 1, 2]]), torch.tensor([3, 2, 3, 2])
    assert finite_counts(logits, Verified(path, counts, path)).tolist() == [1, 0, 2, 2]


@pytest.mark.parametrize("spoilt", [torch.nan, -torch.inf])
@pytest.mark.parametrize("tree", TREES)
def test_scores_that_a_function_spoils_end_their_own_text(tree: str, spoilt: float) -> None:
    """NaN, or nothing but -inf, would be token 0; the tokens before it stay."""
    target = TargetModel(tiny_model("llama"))
    torch.manual_seed(1)
    draft = None if tree in ("plain", "lookup") else SYSTEMS["clover2"].from_target(target).to(target.dtype)

    def process(texts: Tensor, scores: Tensor) -> Tensor:
        return scores if texts.shape[1] < 6 else torch.full_like(scores, spoilt)

    requests = [
        Request((5, 9, 5), 8, SamplingParams(temperature=one, seed=3, process=function), eos=())
        for one in (0.0, 0.9)
        for function in (process, None)
    ]
    scheduler, found = Engine(target, draft, tree).open(3), {}
    for request in requests:
        scheduler.add(request)
    while not scheduler.idle:
        found |= {event.index: event.generation for event in scheduler.step() if event.generation}
    for place in (0, 2):
        assert (found[place].finish_reason, found[place].error_kind) == ("error", "process")
        assert len(found[place].tokens) == 3 and "no token can be chosen" in found[place].error
        assert found[place].tokens == found[place + 1].tokens[:3] or tree.startswith("drawn")
        assert found[place + 1].finish_reason == "length"


@pytest.mark.parametrize("wrong", [None, torch.zeros(1, 3)])
def test_a_function_that_returns_no_scores_is_refused(wrong: Tensor | None) -> None:
    process: Any = lambda texts, scores: wrong  # noqa: E731
    request = Request((5, 9), 8, SamplingParams(process=process))
    with pytest.raises(UserError, match="must return scores of the same shape"):
        list(Engine(TargetModel(tiny_model("llama"))).run([request]))
