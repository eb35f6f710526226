"""Sampling in the whole engine: texts follow the target's distribution, and draws belong to the request.

Also what all trees that are grown anew at every step share: where positions end, and what the statistics count.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from clover.drafting import Drafter, DrawnTree, FixedPolicy, StaticTree, Tree, parse_tree
from clover.drafts import RecallDraft
from clover.engine import Engine, Request
from clover.engine.verifiers import Verifier
from clover.sampling import Sampler, SamplingParams
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE, TokenTree, TreeShape
from tests.drafting.scripted import ScriptedDraft, paths_of, random_opinion
from tests.engine.test_lossless import run, tokens_of
from tests.families import tiny_config, tiny_model
from tests.slow_sampling import slow_probs

VOCAB, PROMPT, NEW = 10, (3, 7, 3), 3
ROWS = 6_000  # of 3 tokens, in each of the six cases of a rule: 108,000 draws
FALSE_ALARM_RATE = 1e-4  # of each case
SMALL = TreeShape.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)])


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """A target whose distribution follows from the last token, so that texts can be enumerated."""
    config = tiny_config("llama")
    config.vocab_size = VOCAB
    model: Any = tiny_model("llama", config=config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return TargetModel(model)


class TableDraft:
    """Knows the target's logits after each token, times `factor`; it is its own session."""

    max_depth = 6
    d2t = session_tokens = None
    config = SimpleNamespace(hidden_state="post_norm")
    usable = True

    def __init__(self, target: TargetModel, factor: float = 1.0):
        self.target = target
        with torch.inference_mode():
            every = torch.arange(VOCAB).unsqueeze(1)
            self.table = factor * target.model(input_ids=every, use_cache=False).logits[:, 0]

    def for_inference(self, full_precision: bool = False) -> TableDraft:
        return self

    def new_session(self, batch_size: int, capacity: int) -> TableDraft:
        return self

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        last = torch.tensor(counts).clamp(min=1).unsqueeze(1) - 1
        return self.table[next_tokens.gather(1, last).squeeze(1)]

    def advance(self, parents: Tensor, tokens: Tensor) -> Tensor:
        return self.table[tokens]

    def drop(self, row: int) -> None:
        """There is nothing to drop."""

    def first_rows(self, rows: int) -> AbstractContextManager[None]:
        return nullcontext()


def engine_of(target: TargetModel, tree: Tree, factor: float = 1.0) -> Engine:
    return Engine(target, TableDraft(target, factor), tree)  # type: ignore[arg-type]


def exact_texts(target: TargetModel, params: SamplingParams, length: int) -> Tensor:
    """The probability of every text of so many tokens, [V ** length]."""
    table, chances = TableDraft(target).table, {(): 1.0}
    for _ in range(length):
        chances = {
            (*text, token): chance * prob
            for text, chance in chances.items()
            for token, prob in enumerate(
                slow_probs(table[(*PROMPT, *text)[-1]].tolist(), params, (*PROMPT, *text))
            )
        }
    return torch.tensor(list(chances.values()), dtype=torch.float64)


def p_value(engine: Engine, params: SamplingParams, rows: int, length: int) -> float:
    """Pearson's chi-square test of many texts; those that expect less than 5 draws are taken together."""
    requests = [Request(PROMPT, NEW, replace(params, seed=seed), eos=()) for seed in range(rows)]
    texts = torch.tensor(tokens_of(run(engine, requests)))[:, :length]
    exact = exact_texts(engine.target, params, length)
    numbers = texts @ torch.tensor([VOCAB**place for place in reversed(range(length))])
    counts, expected = numbers.bincount(minlength=len(exact)).double(), exact * rows
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum(0, keepdim=True)])
    expected = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])
    counts, expected = counts[expected > 0], expected[expected > 0]
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum().item(), len(counts) - 1))


@pytest.mark.long
@pytest.mark.parametrize(
    "tree", [DrawnTree(SMALL), StaticTree(SMALL)], ids=["recursive rejection", "token matching"]
)
@pytest.mark.parametrize("factor", [-1.0, 1.0], ids=["bad draft", "draft equal to the target"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_sampled_texts_have_the_target_distribution(
    target: TargetModel, factor: float, temperature: float, tree: Tree
) -> None:
    """Token matching with a draft that knows the random numbers of the target's choices."""
    params = SamplingParams(temperature=temperature, top_p=0.9, repetition_penalty=1.5)
    engine = engine_of(target, tree, factor)
    assert p_value(engine, params, ROWS, NEW) > FALSE_ALARM_RATE


def undrawn(self: Sampler, draft_probs: Tensor, nodes: Tensor, count: int, tokens: Any) -> Tensor:
    return draft_probs.topk(count).indices


def one_number(self: Sampler, nodes: int, test_numbers: Any = Sampler.test_numbers) -> Tensor:
    return test_numbers(self, 1).expand(-1, nodes)


def number_of_the_bonus(self: Sampler, nodes: int) -> Tensor:
    return (-(-self.gumbels(0)[:, :, 0].double()).exp()).exp().expand(-1, nodes)


def hotter(
    self: Sampler, draft_probs: Tensor, nodes: Tensor, count: int, tokens: Any, draw: Any = Sampler.draw
) -> Tensor:
    return draw(self, draft_probs.sqrt(), nodes, count, tokens)


@pytest.mark.parametrize(
    "slip",
    [
        None,
        ("draw", undrawn),
        ("draw", hotter),
        ("test_numbers", one_number),
        ("test_numbers", number_of_the_bonus),
    ],
)
def test_the_same_test_with_fewer_draws_finds_a_slip(
    target: TargetModel, slip: tuple[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slip is not None:
        monkeypatch.setattr(Sampler, *slip)
    params = SamplingParams(temperature=1.2, repetition_penalty=2.0)
    engine = engine_of(target, DrawnTree(SMALL), 2.0)
    assert (p_value(engine, params, 2000, 1) < FALSE_ALARM_RATE) == (slip is not None)


def test_a_draft_that_equals_the_target_is_accepted_whole(target: TargetModel) -> None:
    requests = [
        Request(PROMPT, 10, SamplingParams(temperature=1.0, seed=seed), eos=()) for seed in range(200)
    ]
    for tree in ("drawn:chain:4", "chain:4", "eagle2:4:1:4"):
        found = run(engine_of(target, parse_tree(tree)), requests)
        assert all(generation.acceptance.histogram == [0, 0, 0, 0, 2] for generation in found)


def test_draws_do_not_depend_on_the_batch() -> None:
    target = TargetModel(tiny_model("llama"))
    draft = RecallDraft.from_target(target).to(target.dtype).eval()
    params = [SamplingParams(temperature=0.6 + 0.2 * i, top_p=0.95, seed=i % 2) for i in range(5)]
    requests = [Request(PROMPT, 12 + i, own, eos=()) for i, own in enumerate([SamplingParams(), *params])]
    engine = Engine(target, draft, DrawnTree(CLOVER2_TREE))
    together = tokens_of(run(engine, requests))
    assert len(set(together)) == len(requests)
    assert tokens_of(run(engine, requests[::-1])) == together[::-1]
    assert [run(engine, [request])[0].tokens for request in requests] == together


def test_the_host_finds_what_a_device_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes looked at one by one, and all at once."""
    target = TargetModel(tiny_model("llama"))
    draft = RecallDraft.from_target(target).to(target.dtype).eval()
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.5),
        SamplingParams(temperature=1.0, frequency_penalty=0.5, banned_tokens=(4,), seed=1),
        SamplingParams(
            temperature=1.5, top_k=9, process=lambda texts, scores: scores - texts[:, -1:] % 3, seed=2
        ),
    ]
    requests = [Request(PROMPT, 20, own, eos=()) for own in params]
    engine = Engine(target, draft, DrawnTree(CLOVER2_TREE))
    on_host = tokens_of(run(engine, requests))
    monkeypatch.setattr("clover.engine.runner.verifier_for", lambda device: Verifier())
    assert tokens_of(run(Engine(target, draft, DrawnTree(CLOVER2_TREE)), requests)) == on_host


def test_trees_end_where_positions_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row nears the limit before the others do: nothing is drafted for it, and for them as ever."""
    monkeypatch.setattr(TargetModel, "longest_run", 26)
    target = TargetModel(tiny_model("llama"))
    draft = RecallDraft.from_target(target).to(target.dtype).eval()
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(3)]
    requests = [Request((3, *[5 + i] * (3 + 7 * i)), 12, own, eos=()) for i, own in enumerate(params)]
    for tree in ("drawn:clover2", "clover2", "budget:4", "eagle2:9:3"):
        engine = Engine(target, draft, parse_tree(tree))
        found = run(engine, requests)
        assert [run(engine, [request])[0].tokens for request in requests] == tokens_of(found)
        assert tree.startswith("drawn") or tokens_of(found) == tokens_of(run(Engine(target), requests))
        longest = found[-1].acceptance
        assert longest.drafted < longest.steps * engine.drafter.max_depth  # type: ignore[union-attr]
        assert found[0].acceptance.drafted > found[0].acceptance.steps


class Noting(Drafter):
    """A drafter that notes how deep each row's tree is."""

    def __init__(self, drafter: Any):
        self.drafter, self.max_depth, self.max_nodes = drafter, drafter.max_depth, drafter.max_nodes
        self.depths: list[int] = []

    def grow(self, *arguments: Any) -> TokenTree:
        tree = self.drafter.grow(*arguments)
        self.depths.append(max(len(path) for path in [(), *paths_of(tree, 0)]))
        return tree


@pytest.mark.parametrize("tree", ["budget:4", "eagle2:6:3", "drawn:clover2"])
def test_statistics_count_the_depth_that_was_drafted(tree: str) -> None:
    target = TargetModel(tiny_model("llama"))
    draft = ScriptedDraft(target, random_opinion(target.vocab_size, ties=False))
    engine = Engine(target, draft, parse_tree(tree))  # type: ignore[arg-type]
    noting = Noting(engine.drafter)
    engine.policy = FixedPolicy(noting)
    (found,) = run(engine, [Request(PROMPT, 24, SamplingParams(temperature=1.0), eos=())])
    assert found.acceptance.drafted == sum(noting.depths)
    assert tree.startswith("drawn") or len(set(noting.depths)) > 1
