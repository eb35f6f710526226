"""The target that docs/development/extending.md shows works as it stands there, and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clover.drafting import FixedPolicy, LookupDrafter, parse_tree
from clover.engine import Engine, PrefixStore, Request
from clover.sampling import SamplingParams
from clover.target import TargetSession
from clover.tree import TokenTree
from tests.drafting.scripted import ScriptedDraft
from tests.engine.test_lossless import SETTINGS, run, tokens_of
from tests.extending import module_of


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The target of the page, from a file of its own."""
    file = tmp_path_factory.mktemp("target") / "ngrams.py"
    return module_of("A target of another kind", file).NgramTarget()


def follow_up(target: Any, text: list[int], new: int) -> list[int]:
    """What the table says step by step, greedily."""
    text = list(text)
    for _ in range(new):
        text.append(int(target.table[text[-2], text[-1]].argmax()))
    return text[-new:]


def requests(params: tuple[SamplingParams, ...], batch: int = 5) -> list[Request]:
    torch.manual_seed(0)
    prompts = [tuple(torch.randint(16, (length,)).tolist()) for length in (2, 9, 4, 30, 3)]
    return [Request(prompts[row], 40 - 3 * row, params[row % len(params)], eos=()) for row in range(batch)]


def half_right(target: Any) -> ScriptedDraft:
    """A draft that knows the table where the sum of the last two tokens is even."""

    def opinion(text: tuple[int, ...]) -> torch.Tensor:
        before, last = (0, 0, *text)[-2:]
        known = target.table[before, last].double()
        return known if (before + last) % 2 == 0 else -known

    return ScriptedDraft(target, opinion)


@pytest.mark.parametrize("method", ["keep", "commit", "crop", "drop", "insert", "fill_row"])
def test_a_session_that_lacks_a_method_is_refused(target: Any, method: str) -> None:
    """One that did nothing instead would write another text."""
    members = {name: each for name, each in vars(type(target.open(1, 1))).items() if name != method}
    kind = type("Partial", (TargetSession,), members)
    with pytest.raises(TypeError, match=method):
        kind([[]])


def test_plain_decoding_follows_the_table(target: Any) -> None:
    asked = requests(SETTINGS[:1])
    for request, generation in zip(asked, run(Engine(target), asked), strict=True):
        assert list(generation.tokens) == follow_up(target, list(request.prompt), request.max_new_tokens)


@pytest.mark.parametrize("tree", ["chain:3", "medusa", "budget:6", "eagle2:8"])
def test_trees_give_the_tokens_of_plain_decoding(target: Any, tree: str) -> None:
    asked = requests(SETTINGS)
    plain = run(Engine(target), asked)
    found = run(Engine(target, half_right(target), parse_tree(tree)), asked)  # type: ignore[arg-type]
    assert tokens_of(found) == tokens_of(plain)
    assert sum(g.acceptance.steps for g in found) < 0.8 * sum(g.acceptance.steps for g in plain)


def test_prompt_lookup_gives_the_tokens_of_plain_decoding(target: Any) -> None:
    asked = requests((SamplingParams(), SamplingParams(temperature=0.3, seed=1)))
    plain = run(Engine(target), asked)
    found = run(Engine(target, policy=FixedPolicy(LookupDrafter(6))), asked)
    assert tokens_of(found) == tokens_of(plain)
    assert sum(g.acceptance.steps for g in found) < sum(g.acceptance.steps for g in plain)


def test_requests_join_and_leave(target: Any) -> None:
    asked = requests(SETTINGS)
    expected = tokens_of(run(Engine(target), asked))
    engine = Engine(target, policy=FixedPolicy(LookupDrafter(6)))
    found = {e.index: e.generation for e in engine.run(asked, max_sequences=2) if e.generation is not None}
    assert [found[index].tokens for index in range(len(asked))] == expected


def test_a_conversation_goes_on_where_it_ended(target: Any) -> None:
    engine, store = Engine(target), PrefixStore(10_000)
    first = Request(tuple(range(14)) * 2, 20, eos=(), keep=True)
    (one,) = [e.generation for e in engine.run([first], store=store) if e.generation is not None]
    second = Request((*first.prompt, *one.tokens, 3, 4), 20, eos=())
    (two,) = [e.generation for e in engine.run([second], store=store) if e.generation is not None]
    assert list(two.tokens) == follow_up(target, list(second.prompt), 20) and two.cached_tokens > 40


def test_a_slip_in_the_target_would_be_found(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that forgets the parents in a tree writes another text."""
    asked = requests(SETTINGS[:1])
    session = type(target.open(1, 1))
    right = session.run

    def run_flat(self: Any, tokens: Any, *others: Any, **options: Any) -> Any:
        return right(self, tokens.tokens if isinstance(tokens, TokenTree) else tokens, *others, **options)

    expected = tokens_of(run(Engine(target), asked))
    monkeypatch.setattr(session, "run", run_flat)
    found = run(Engine(target, half_right(target), parse_tree("medusa")), asked)  # type: ignore[arg-type]
    assert tokens_of(found) != expected
