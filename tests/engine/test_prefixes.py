"""Texts that are kept for later requests: nothing of them is run again, and no text changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from transformers import LlamaConfig

from clover.cache import KVCache
from clover.drafting import PLAIN_DRAFTER, FixedPolicy, parse_tree
from clover.engine import Engine, EngineLimits, PrefixStore, Request, Scheduler
from clover.target import TargetModel
from tests.engine.test_lossless import SETTINGS, run
from tests.engine.test_scheduler import SOME_CASES, Watched, drain, engine_of
from tests.families import VOCAB, tiny_config, tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def text(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, VOCAB) for _ in range(length))


def finished(decoding: Scheduler, requests: list[Request]) -> list[tuple[tuple[int, ...], int]]:
    """Tokens of each request, and how much of its prompt was not run."""
    first = decoding.add(requests[0])
    for request in requests[1:]:
        decoding.add(request)
    found = {event.index - first: event.generation for event in drain(decoding) if event.generation}
    return [(found[i].tokens, found[i].cached_tokens) for i in range(len(requests))]


def rotary_that_depends_on_the_length() -> LlamaConfig:
    config = tiny_config("llama").to_dict() | {"max_position_embeddings": 256}
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    return LlamaConfig(**config | {"rope_parameters": rope})


@pytest.mark.parametrize(("family", "make"), [("gpt2", None), ("llama", rotary_that_depends_on_the_length)])
def test_padding_of_a_chunk_stays_within_the_context(family: str, make: Callable | None) -> None:
    engine, store = Engine(TargetModel(tiny_model(family, config=make and make()))), PrefixStore(2**24)
    long, short = text(3, 250), text(4, 60)
    requests = [Request(long, 4, eos=()), Request(short, 8, eos=())]
    decoding = engine.open(2, store=store)
    finished(decoding, [Request(long[:240], 2, eos=(), keep=True)])
    found = finished(decoding, requests)
    assert found[0][1] > 200
    for request, (tokens, _) in zip(requests, found, strict=True):
        assert tokens == run(engine, [request])[0].tokens


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize(("system", "tree"), [(None, None), *SOME_CASES])
def test_turns_of_several_conversations_get_the_texts_of_fresh_requests(
    target: TargetModel, system: str | None, tree: str | None
) -> None:
    engine, store = engine_of(target, system, tree), PrefixStore(2**24)
    decoding = engine.open(3, store=store)
    talks = [text(seed, length) for seed, length in enumerate((30, 21, 45, 3))]
    for turn in range(3):
        requests = [
            Request(talk, 6 + i, SETTINGS[(turn + i) % len(SETTINGS)], eos=(), keep=True)
            for i, talk in enumerate(talks)
        ]
        found = finished(decoding, requests)
        for fresh, (tokens, cached) in zip(run(engine, requests), found, strict=True):
            assert tokens == fresh.tokens
            assert cached == 0 or turn > 0
        # With a draft that was asked at each step nothing but the newest tokens is run again.
        assert turn == 0 or all(
            cached >= len(r.prompt) - 12 for r, (_, cached) in zip(requests, found) if cached
        )
        assert turn == 0 or sum(cached > 0 for _, cached in found) >= 3
        talks = [
            (*request.prompt, *tokens, *text(turn * 10 + i, 4))
            for i, (request, (tokens, _)) in enumerate(zip(requests, found, strict=True))
        ]
        talks.reverse()
    assert len(store) == 4


def test_what_is_kept_is_not_run_again(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, talk = engine_of(target, "clover2", "chain:2"), text(1, 80)
    decoding = engine.open(2, store=PrefixStore(2**24))
    [(tokens, _)] = finished(decoding, [Request(talk, 5, eos=(), keep=True)])
    watched = Watched(target, monkeypatch)
    [(_, cached)] = finished(decoding, [Request((*talk, *tokens, 4, 5), 1, eos=())])
    assert cached >= 80
    assert sum(nodes for _, nodes in watched.shapes) <= 12
    [(_, cached)] = finished(decoding, [Request((9, *talk), 1, eos=())])
    assert cached == 0


@pytest.mark.parametrize("system", ["clover2", "eagle"])
def test_a_text_of_plain_steps_is_kept_whole(target: TargetModel, system: str) -> None:
    """The draft had no part in it, and knows it all the same."""
    draft, talk = engine_of(target, system, "chain:2").draft, text(1, 40)
    engine = Engine(target, draft, policy=FixedPolicy(PLAIN_DRAFTER), limits=EngineLimits(prefill_chunk=8))
    store = PrefixStore(2**24)
    [(tokens, _)] = finished(engine.open(2, store=store), [Request(talk, 30, eos=(), keep=True)])
    follow_up = Request((*talk, *tokens, 4, 5), 12, eos=(), keep=True)
    drafting = Engine(target, draft, parse_tree("chain:2"))
    [(said, cached)] = finished(drafting.open(2, store=store), [follow_up])
    assert cached >= len(talk) + len(tokens) - 2
    assert said == run(drafting, [follow_up])[0].tokens


def test_a_changed_prompt_shares_its_beginning(target: TargetModel) -> None:
    engine, talk = engine_of(target, "clover2", "chain:2"), text(2, 60)
    decoding = engine.open(2, store=PrefixStore(2**24))
    finished(decoding, [Request(talk, 20, eos=(), keep=True)])
    changed = Request((*talk[:40], *text(3, 20)), 8, eos=())
    [(tokens, cached)] = finished(decoding, [changed])
    assert 30 <= cached <= 40
    assert tokens == run(engine, [changed])[0].tokens


def test_a_cancelled_text_leaves_nothing_in_the_store(target: TargetModel) -> None:
    store = PrefixStore(2**24)
    decoding = engine_of(target, "clover2", "chain:2").open(2, store=store)
    number = decoding.add(Request(text(2, 60), 50, eos=(), keep=True))
    for _ in range(20):
        decoding.step()
    decoding.cancel(number)
    assert decoding.idle and len(store) == store.bytes == 0


def test_prompts_that_are_cancelled_on_their_way_disturb_nobody(target: TargetModel) -> None:
    engine = engine_of(target, "clover2", "clover2")
    decoding, talks = engine.open(4, store=PrefixStore(2**24)), [text(seed, 40) for seed in range(3)]
    finished(decoding, [Request(talk, 4, eos=(), keep=True) for talk in talks])
    requests = [Request((*talk[: 36 - 9 * i], *text(i, 30)), 6, eos=()) for i, talk in enumerate(talks)]
    numbers = [decoding.add(request) for request in requests]
    decoding.step()
    decoding.cancel(numbers[0])
    found = {event.index: event.generation for event in drain(decoding) if event.generation}
    for number, request in zip(numbers[1:], requests[1:], strict=True):
        assert found[number].tokens == run(engine, [request])[0].tokens


def test_the_store_forgets_what_was_not_used_for_longest(target: TargetModel) -> None:
    engine, talks = Engine(target), [text(seed, 40) for seed in range(4)]
    one = PrefixStore(2**24)
    finished(engine.open(1, store=one), [Request(talks[0], 2, eos=(), keep=True)])
    assert len(one) == 1 and one.bytes > 0
    store = PrefixStore(3 * one.bytes)
    decoding = engine.open(1, store=store)
    for talk in (talks[0], talks[1], talks[2], talks[0], talks[3]):
        finished(decoding, [Request(talk, 2, eos=(), keep=True)])
        assert store.bytes <= store.most_bytes
    assert [store.find(talk) is not None for talk in talks] == [True, False, True, True]
    finished(engine.open(1, store=(small := PrefixStore(10))), [Request(talks[0], 2, eos=(), keep=True)])
    assert len(small) == small.bytes == 0


def test_a_text_larger_than_the_store_pushes_out_no_other(target: TargetModel) -> None:
    decoding = Engine(target).open(1, store=(store := PrefixStore(60_000)))
    talk, other = text(0, 20), text(1, 20)
    finished(decoding, [Request(one, 2, eos=(), keep=True) for one in (talk, other)])
    assert len(store) == 2
    finished(decoding, [Request((*talk, *text(2, 200)), 2, eos=(), keep=True)])
    assert store.find(talk) and store.find(other) and store.bytes <= store.most_bytes


def test_a_text_larger_than_the_store_is_not_copied(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy would take memory that the running texts need, and the draft's catching up time."""
    engine, copied = engine_of(target, "clover2", "chain:2"), list[int]()
    copy_row = KVCache.copy_row

    def watched(self: KVCache, row: int, length: int) -> KVCache:
        copied.append(length)
        return copy_row(self, row, length)

    monkeypatch.setattr(KVCache, "copy_row", watched)
    small, large = (Request(text(0, size), 2, eos=(), keep=True) for size in (20, 200))
    finished(engine.open(1, store=(store := PrefixStore(2**16))), [large])
    assert not copied and len(store) == 0
    finished(engine.open(1, store=store), [small])
    assert copied and len(store) == 1


def test_a_text_is_kept_when_the_consumer_stops_early(target: TargetModel) -> None:
    engine, store = engine_of(target, "recall", "chain:3"), PrefixStore()
    request = Request(text(1, 20), 30, eos=(), keep=True)
    events = engine.run([request], store=store)
    said = [token for event in (next(events) for _ in range(3)) for token in event.tokens]
    events.close()
    follow_up = Request((*request.prompt, *said, 8, 8), 20, eos=())
    [(tokens, cached)] = finished(engine.open(1, store=store), [follow_up])
    assert cached >= len(request.prompt) - 1 and tokens == run(engine, [follow_up])[0].tokens


def test_a_run_that_fails_in_its_prefill_leaves_the_store_as_it_was(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, store = engine_of(target, "recall", "chain:3"), PrefixStore(most_texts=1)
    [(said, _)] = finished(engine.open(1, store=store), [Request(text(1, 20), 12, eos=(), keep=True)])
    with monkeypatch.context() as patch:
        patch.setattr(target, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(engine.run([Request(text(2, 20), 12, eos=(), keep=True)], store=store))
    follow_up = Request((*text(1, 20), *said, 8), 12, eos=())
    [(tokens, cached)] = finished(engine.open(1, store=store), [follow_up])
    assert cached >= 30 and tokens == run(engine, [follow_up])[0].tokens


def test_a_prompt_that_is_kept_whole_leaves_the_draft_its_hidden_states(target: TargetModel) -> None:
    engine, store = engine_of(target, "recall", "chain:3"), PrefixStore()
    [(said, _)] = finished(engine.open(1, store=store), [Request(text(1, 20), 12, eos=(), keep=True)])
    again = Request((*text(1, 20), *said[:6]), 12, eos=())
    seen = [[event.tokens for event in engine.run([again], store=one)] for one in (store, None)]
    assert seen[0] == seen[1], "the same steps, so the same drafts"


def test_a_store_of_one_text_has_the_last_one(target: TargetModel) -> None:
    decoding = Engine(target).open(1, store=(store := PrefixStore(most_texts=1, fewest=3)))
    finished(decoding, [Request(text(seed, 5), 2, eos=(), keep=True) for seed in range(3)])
    assert len(store) == 1 and store.find(text(2, 5)) and not store.find(text(1, 5))
