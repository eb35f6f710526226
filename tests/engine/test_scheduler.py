"""Rows that join and leave a running batch: the text of each is what it is alone, whatever runs beside it."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.cache import KVCache
from clover.drafting import parse_tree
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, EngineLimits, Request, Scheduler, StepEvent
from clover.errors import UserError
from clover.sampling import SamplingParams
from clover.target import HiddenStates, TargetModel
from tests.engine.test_lossless import SETTINGS, run, tokens_of
from tests.families import CONTEXT, VOCAB, by_turns, tiny_model

CASES = [
    ("clover2", "clover2"),
    ("clover2", "drawn:clover2"),
    ("clover2", "budget:4"),
    ("clover2", "eagle2:8:3"),
    ("clover1", "chain:3"),
    ("eagle", "eagle2:8:3"),
    ("eagle3", "drawn:chain:3"),
    ("hydra", "medusa"),
    ("medusa", "budget:4"),
]
SOME_CASES = by_turns(CASES)
NEW = 9
CHUNKS = EngineLimits(prefill_chunk=4)


def some_requests(seed: int, count: int, params: Sequence[SamplingParams] = SETTINGS) -> list[Request]:
    """Requests whose prompts and texts are all of different lengths; some end by an end-of-sequence token."""
    rng = random.Random(seed)
    prompts = [tuple(rng.randrange(3, VOCAB) for _ in range(rng.choice((1, 2, 6, 13)))) for _ in range(count)]
    return [
        Request(prompt, rng.randrange(1, NEW), params[i % len(params)], eos=() if i % 3 else None)
        for i, prompt in enumerate(prompts)
    ]


def draft_of(target: TargetModel, system: str) -> Any:
    torch.manual_seed(1)
    return SYSTEMS[system].from_target(target, num_heads=5).to(target.dtype).eval()


def engine_of(
    target: TargetModel, system: str | None, tree: str | None, limits: EngineLimits = CHUNKS
) -> Engine:
    draft = None if system is None else draft_of(target, system)
    return Engine(target, draft, None if tree is None else parse_tree(tree), limits=limits)


def drain(decoding: Scheduler) -> Iterator[StepEvent]:
    while not decoding.idle:
        yield from decoding.step()


def at_random(
    decoding: Scheduler, requests: Sequence[Request], seed: int
) -> tuple[list[list[int]], set[int]]:
    """Add the requests and cancel some at random moments; what each was given, and which were cancelled."""
    rng, added, cancelled = random.Random(seed), 0, set[int]()
    given: list[list[int]] = [[] for _ in requests]
    while added < len(requests) or not decoding.idle:
        while added < len(requests) and rng.random() < 0.5:
            assert decoding.add(requests[added]) == added
            added += 1
        if added and rng.random() < 0.1:
            cancelled.add(index := rng.randrange(added))
            decoding.cancel(index)
        for event in decoding.step():
            assert event.index not in cancelled or event.generation is None
            given[event.index] += event.tokens
    return given, cancelled


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def check_arrivals(engine: Engine, seed: int) -> None:
    requests = some_requests(seed, 10)
    alone = [run(engine, [request])[0].tokens for request in requests]
    given, cancelled = at_random(engine.open(3), requests, seed)
    for index, (tokens, whole) in enumerate(zip(given, alone)):
        assert tuple(tokens) == (whole[: len(tokens)] if index in cancelled else whole)
    assert 0 < len(cancelled) < len(requests)


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize(("system", "tree"), [(None, None), *SOME_CASES])
def test_texts_do_not_depend_on_who_runs_beside_them(
    target: TargetModel, system: str | None, tree: str | None
) -> None:
    limits = EngineLimits(prefill_chunk=4, new_tokens=1)
    check_arrivals(engine_of(target, system, tree, limits), seed=4)


@pytest.mark.parametrize("family", ["gpt2", "gemma3_text", "phi3", "gpt_neox"])
def test_in_other_families_too(family: str) -> None:
    check_arrivals(engine_of(TargetModel(tiny_model(family)), "clover2", "clover2"), seed=4)


@pytest.mark.parametrize(("system", "tree"), CASES[:2])
def test_a_run_refills_the_places_of_rows_that_finish(target: TargetModel, system: str, tree: str) -> None:
    requests, engine = some_requests(2, 9), engine_of(target, system, tree)
    expected = tokens_of(run(engine, requests))
    for max_sequences in (1, 2, 4, 20):
        events = [*engine.run(requests, max_sequences=max_sequences)]
        found = {event.index: event.generation.tokens for event in events if event.generation}
        assert [found[i] for i in range(len(requests))] == expected


class Watched:
    """Notes rows and tokens of every forward of a target."""

    def __init__(self, target: TargetModel, monkeypatch: pytest.MonkeyPatch):
        self.shapes: list[tuple[int, int]] = []
        self._forward = target.forward
        monkeypatch.setattr(target, "forward", self)

    def __call__(self, tokens: Tensor, *others: Any) -> HiddenStates:
        self.shapes.append((tokens.shape[0], tokens.shape[1]))
        return self._forward(tokens, *others)


class Caches:
    """Remembers the caches that a target makes, without keeping them alive."""

    def __init__(self, target: TargetModel, monkeypatch: pytest.MonkeyPatch):
        self._made: list[weakref.ref[KVCache]] = []
        self._new_cache = target.new_cache
        monkeypatch.setattr(target, "new_cache", self)

    def __call__(self, *sizes: int) -> KVCache:
        cache = self._new_cache(*sizes)
        self._made.append(weakref.ref(cache))
        return cache

    @property
    def alive(self) -> list[KVCache]:
        gc.collect()
        return [cache for one in self._made if (cache := one()) is not None]


def test_a_long_prompt_holds_up_nobody(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(target, "clover2", "chain:2")
    decoding, watched = engine.open(2), Watched(target, monkeypatch)
    decoding.add(Request((3, 4), 100, eos=()))
    decoding.step()
    late = decoding.add(Request(tuple(range(3, 43)), 5, eos=()))
    for _ in range(9):  # 39 tokens in chunks of 4: ten steps
        watched.shapes.clear()
        assert [event.index for event in decoding.step()] == [0]
        assert watched.shapes == [(1, 4), (1, 3)]
    watched.shapes.clear()
    assert [event.index for event in decoding.step()] == [0, late]
    assert watched.shapes == [(1, 3), (2, 3)]


def test_what_runs_is_neither_copied_nor_run_again(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every position goes through the target once, and the tensors of the cache stay where they are."""
    engine = engine_of(target, None, None)
    requests = [Request(tuple(range(3, 6 + i)), 5 + i, eos=()) for i in range(6)]
    decoding, watched, places = engine.open(2), Watched(target, monkeypatch), set[int]()
    caches = Caches(target, monkeypatch)
    for request in requests:
        decoding.add(request)
    for _ in drain(decoding):
        if decoding.running:
            places.add(caches.alive[0].keys.untyped_storage().data_ptr())
    alone = sum(len(request.prompt) + request.max_new_tokens - 1 for request in requests)
    padding = 1  # of the first two prompts, which are run together
    assert sum(rows * tokens for rows, tokens in watched.shapes) == alone + padding
    assert len(places) == 1


def test_short_prompts_join_together(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    decoding, watched = engine_of(target, None, None).open(4), Watched(target, monkeypatch)
    decoding.add(Request((3, 4), 50, eos=()))
    decoding.step()
    watched.shapes.clear()
    for prompt in ((5, 6), (7, 8), (9, 10)):
        decoding.add(Request(prompt, 5, eos=()))
    decoding.step()
    assert watched.shapes == [(2, 1), (3, 1)]
    decoding.step()
    assert watched.shapes[2:] == [(1, 1), (4, 1)]


def test_prompts_that_have_ended_are_not_run_on(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request(tuple(range(3, 3 + n)), 3, eos=()) for n in (6, 30, 21, 1, 20)]
    for padding, expected in (
        (0, [(4, 5), (3, 14), (2, 1), (1, 9)]),
        (1, [(4, 5), (3, 15), (1, 9)]),
        (30, [(4, 20), (1, 9)]),
    ):
        with monkeypatch.context() as patch:
            watched = Watched(target, patch)
            found = run(Engine(target, limits=EngineLimits(padding=padding)), requests)
        assert watched.shapes == [*expected, (5, 1), (5, 1), (5, 1)]
        assert [one.tokens for one in found] == [run(Engine(target), [one])[0].tokens for one in requests]


@pytest.mark.parametrize("system", ["clover2", "eagle3", "recall"])
def test_the_draft_runs_no_prompt_that_has_ended(
    target: TargetModel, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks have the shapes of the target's, and it drafts what it does for each prompt alone."""
    engine, committed = engine_of(target, system, "chain:3"), list[tuple[int, ...]]()
    requests = [Request(tuple(3 + i % 7 for i in range(n)), 9, eos=()) for n in (6, 30, 21, 1, 20)]
    alone = [run(engine, [one])[0].acceptance for one in requests]
    assert engine.draft is not None
    session = type(engine.draft.new_session(1, 1))
    commit = session.commit

    def noted(self: Any, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        committed.append(tuple(next_tokens.shape))
        return commit(self, hidden, next_tokens, counts)

    monkeypatch.setattr(session, "commit", noted)
    decoding, watched = engine.open(5), Watched(target, monkeypatch)
    for request in requests:
        decoding.add(request)
    while not decoding.running:
        decoding.step()
    assert committed[:-1] == watched.shapes[:-1], "all but the decoding step"
    assert committed[-2][0] == 1
    found = {event.index: event.generation.acceptance for event in drain(decoding) if event.generation}
    assert [found[i] for i in range(len(requests))] == alone


def test_a_bad_request_is_refused_alone_and_at_once(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(target, "clover2", None)
    decoding, watched = engine.open(2), Watched(target, monkeypatch)
    good = Request((3, 4), 6, eos=())
    decoding.add(good)
    for bad in (Request((3,) * CONTEXT), Request((3, VOCAB)), Request((3,), stop=("x",))):
        with pytest.raises(UserError):
            decoding.add(bad)
    with pytest.raises(UserError, match="vocabulary"):
        decoding.add(Request((3,), params=SamplingParams(banned_tokens=(VOCAB,))))
    assert not watched.shapes
    (found,) = [event.generation for event in drain(decoding) if event.generation]
    assert found.tokens == run(engine, [good])[0].tokens
    assert decoding.add(good) == 1


def test_a_cancelled_row_makes_room_at_once(target: TargetModel) -> None:
    decoding = engine_of(target, "clover2", "chain:2").open(1)
    running, waiting, last = (decoding.add(Request((3 + i, 4), 50, eos=())) for i in range(3))
    decoding.step()
    decoding.cancel(waiting)
    assert decoding.running == 1
    decoding.cancel(running)
    decoding.cancel(running)
    assert decoding.running == 0 and not decoding.idle
    assert [event.index for event in decoding.step()] == [last]
    decoding.cancel(last)
    assert decoding.idle and decoding.step() == []


@pytest.mark.parametrize("lengths", [(17, 18, 19), (6, 19, 12, 18, 2)])
def test_a_row_can_be_cancelled_while_its_prompt_runs(target: TargetModel, lengths: Sequence[int]) -> None:
    engine = engine_of(target, "clover2", "chain:2")
    requests = [Request(tuple(range(3, 3 + n)), 5, eos=()) for n in lengths]
    for before, steps in ((0, 1), (1, 1), (0, 3)):
        decoding = engine.open(len(requests))
        for request in requests[:before]:
            decoding.add(request)
            while not decoding.running:
                decoding.step()
        for request in requests[before:]:
            decoding.add(request)
        for _ in range(steps):
            assert len(decoding.step()) == before
        decoding.cancel(1)
        found = {event.index: event.generation.tokens for event in drain(decoding) if event.generation}
        others = [i for i in range(len(requests)) if i != 1]
        assert found == {i: run(engine, [requests[i]])[0].tokens for i in others}


def test_a_batch_goes_on_after_it_was_idle(target: TargetModel) -> None:
    engine = engine_of(target, "clover2", "drawn:clover2")
    decoding = engine.open(2)
    for round_ in range(3):
        requests = some_requests(round_, 3)
        for request in requests:
            decoding.add(request)
        found = {event.index: event.generation.tokens for event in drain(decoding) if event.generation}
        expected = [run(engine, [request])[0].tokens for request in requests]
        assert [found[3 * round_ + i] for i in range(3)] == expected
    with pytest.raises(UserError, match="max_sequences"):
        engine.open(0)


def test_the_mask_of_a_chunk_stays_small_after_a_long_text(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = EngineLimits(prefill_chunk=32, chunk_mask=2_000, least_chunk=4)
    engine, watched = Engine(target, limits=limits), Watched(target, monkeypatch)
    request = Request(tuple(3 + i % 40 for i in range(200)), 5, eos=())
    (found,) = run(engine, [request])
    prompt = watched.shapes[:-5]
    seen = 0
    for _, tokens in prompt:
        assert tokens <= 4 or tokens * (seen + tokens) <= 2_000
        seen += tokens
    assert seen == 199 and prompt[0] == (1, 32) and prompt[-2][1] < 12
    monkeypatch.undo()
    assert found.tokens == run(Engine(target), [request])[0].tokens


def test_many_rows_run_few_tokens_each_at_once(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = EngineLimits(chunk_tokens=64, least_chunk=4)
    requests = [Request(tuple(3 + (i + row) % 40 for i in range(60)), 3, eos=()) for row in range(20)]
    for rows, most in ((1, 59), (3, 21), (20, 4)):
        with monkeypatch.context() as patch:
            watched = Watched(target, patch)
            found = run(Engine(target, limits=limits), requests[:rows])
        assert watched.shapes[0] == (rows, most)
        assert [one.tokens for one in found] == [
            run(Engine(target), [one])[0].tokens for one in requests[:rows]
        ]


def test_a_batch_without_rows_has_no_cache(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    decoding, caches = engine_of(target, "clover2", "chain:2").open(4), Caches(target, monkeypatch)
    for _ in range(2):
        decoding.add(Request((3, 4), 5, eos=()))
        assert [*drain(decoding)] and not caches.alive
    index = decoding.add(Request((3, 4), 50, eos=()))
    decoding.step()
    assert caches.alive
    decoding.cancel(index)
    assert not caches.alive


@pytest.mark.parametrize(("system", "tree"), SOME_CASES)
def test_caches_have_rows_for_those_that_run(
    target: TargetModel, system: str, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many may run at once; one that comes later finds a place all the same."""
    decoding, rows = engine_of(target, system, tree).open(100), list[int]()
    caches = Caches(target, monkeypatch)
    for _ in range(5):
        decoding.add(Request((3, 4), 60, eos=()))
        decoding.step()
        rows.append(caches.alive[0].storage[0].shape[1])
    assert rows == [1, 2, 4, 4, 8]
    texts = [event.generation.tokens for event in drain(decoding) if event.generation]
    assert len(texts) == 5 and len(set(texts)) == 1


def test_accepted_paths_are_told(target: TargetModel) -> None:
    engine = engine_of(target, "clover2", "chain:3")
    for event in engine.run([Request((3, 4, 5), 20, eos=()), Request((6,), 20, eos=())]):
        assert event.path == tuple(range(len(event.path)))
        assert len(event.path) >= len(event.tokens)
