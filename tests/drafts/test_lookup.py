"""Prompt lookup against a brute-force scan of the text."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clover.drafting import StaticDrafter
from clover.drafts import LookupDraft, RecallDraft, load_draft
from clover.drafts.lookup import NgramIndex
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.target import TargetModel
from clover.train import TrainConfig, train
from clover.tree import TreeShape
from tests.families import HIDDEN, VOCAB, tiny_model

tokens_of_few = st.lists(st.integers(0, 3), max_size=40)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module")
def draft(target: TargetModel) -> LookupDraft:
    found = load_draft("lookup", target)
    assert isinstance(found, LookupDraft)
    return found


def scanned(text: list[int], path: list[int], longest: int = 3, shortest: int = 1) -> list[int]:
    """Continuations of text + path, best first, by going through the whole text for every n-gram."""
    context, found = text + path, []
    for n in range(min(longest, len(context)), shortest - 1, -1):
        counts: dict[int, int] = {}
        last: dict[int, int] = {}
        for at in range(n, len(text)):
            if text[at - n : at] == context[-n:] and text[at] not in found:
                counts[text[at]] = counts.get(text[at], 0) + 1
                last[text[at]] = at
        found += sorted(counts, key=lambda token: (counts[token], last[token]), reverse=True)
    return found


def check(logits: Tensor, text: list[int], path: list[int], **limits: int) -> None:
    """The scanned tokens stand in that order, strictly, and strictly above all others, which are equal."""
    expected = scanned(text, path, **limits)
    order = logits.argsort(descending=True, stable=True)[: len(expected)].tolist()
    assert order == expected
    ranked = logits[expected].tolist()
    assert all(above > below for above, below in pairwise(ranked))
    others = logits[[token for token in range(VOCAB) if token not in expected]]
    assert (others == others[0]).all() and all(value > others[0] for value in ranked)


def commit(session, texts: list[list[int]]) -> Tensor:
    width = max(1, *map(len, texts))
    padded = torch.tensor([[*text, *[7] * (width - len(text))] for text in texts])
    return session.commit(torch.zeros(len(texts), width, HIDDEN), padded, [len(text) for text in texts])


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    first=st.tuples(tokens_of_few, tokens_of_few),
    second=st.tuples(tokens_of_few, tokens_of_few),
)
def test_everything_a_session_says_is_what_a_scan_finds(target, draft, data, first, second) -> None:
    session, texts = draft.new_session(2, capacity=1), [list(text) for text in first]
    commit(session, texts)
    kept = [data.draw(st.integers(0, len(text)), label="crop") for text in texts]
    session.crop(kept)
    texts = [text[:length] + list(more) for text, length, more in zip(texts, kept, second)]
    logits = commit(session, [list(more) for more in second])
    assert session.lengths == [len(text) for text in texts]
    paths: list[list[list[int]]] = [[[]], [[]]]
    for row in range(2):
        check(logits[row], texts[row], [])
    for nodes in (3, 2, 3):
        slots = torch.tensor([[data.draw(st.integers(0, len(p) - 1)) for _ in range(nodes)] for p in paths])
        tokens = torch.tensor([[data.draw(st.integers(0, 3)) for _ in range(nodes)] for _ in paths])
        paths = [
            [[*paths[b][slot], token] for slot, token in zip(slots[b].tolist(), tokens[b].tolist())]
            for b in range(2)
        ]
        logits = session.advance(slots, tokens)
        for row in range(2):
            for node, path in enumerate(paths[row]):
                check(logits[row, node], texts[row], path)
    session.drop(0)
    assert session.lengths == [len(texts[1])]
    check(commit(session, [[1, 2]])[0], [*texts[1], 1, 2], [])


@settings(max_examples=40, deadline=None)
@given(text=tokens_of_few)
def test_only_the_configured_ngrams_count(target, text) -> None:
    draft = LookupDraft.from_target(target, max_ngram=4, min_ngram=2)
    logits = commit(draft.new_session(1, 1), [text])
    check(logits[0], text, [], longest=4, shortest=2)


def test_probabilities_follow_the_counts(draft: LookupDraft) -> None:
    text = [9, 1, 5, 9, 1, 5, 9, 1, 6, 8, 1, 4, 9, 1]  # after 9 1: 5 twice, 6 once; after 1 also 4
    logits = commit(draft.new_session(1, 1), [text])[0]
    assert logits.dtype == torch.float32
    probs = logits.softmax(-1)
    torch.testing.assert_close(probs[5] / probs[6], torch.tensor(2.0), rtol=0.5, atol=0)
    torch.testing.assert_close(probs[6] / probs[4], torch.tensor(2.0), rtol=0.5, atol=0)
    assert probs[[5, 6, 4]].sum() > 0.85


def test_cropping_forgets_every_ngram(draft: LookupDraft) -> None:
    session = draft.new_session(1, 1)
    commit(session, [[1, 2, 3, 1, 2, 4, 1]])
    session.crop([0])
    (index,) = session.rows
    assert index.text == [] and not index._places
    assert (commit(session, [[]]) == 0).all()


def test_a_text_that_repeats_takes_fewer_steps(target: TargetModel, draft: LookupDraft) -> None:
    requests = [Request((9,), 100), Request((3, 4, 5, 3, 4, 5, 3), 40), Request((7,), 90)]

    def generations(engine: Engine) -> dict:
        return {event.index: event.generation for event in engine.run(requests) if event.generation}

    plain, looked_up = generations(Engine(target)), generations(Engine(target, draft))
    assert {i: g.tokens for i, g in plain.items()} == {i: g.tokens for i, g in looked_up.items()}
    assert looked_up[0].acceptance.tau > 2 and looked_up[2].acceptance.tau > 2


def test_order_is_strict_for_thousands_of_equals() -> None:
    index = NgramIndex(1, 3)
    for token in range(10, 5010):
        for item in (1, 2, token):
            index.append(item)
    for token in (3, 2, 9, 1, 2):
        index.append(token)
    shares, mass = index.log_shares((8, 1, 2))
    assert list(shares) == [*range(5009, 9, -1), 9]
    logits = torch.tensor(list(shares.values()), dtype=torch.float64).sub(mass).float()
    assert (logits.diff() < 0).all() and logits[-1] > -math.log(2)


def test_it_is_a_configuration_without_weights(target: TargetModel, tmp_path: Path) -> None:
    draft = LookupDraft.from_target(target, num_heads=2, max_ngram=5)
    assert not draft.trainable and not list(draft.parameters())
    draft.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    loaded = load_draft(tmp_path, target)
    assert isinstance(loaded, LookupDraft) and loaded.config.num_heads == 2 and loaded.config.max_ngram == 5
    config = json.loads((tmp_path / "config.json").read_text())
    config["target_config"]["vocab_size"] = VOCAB + 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="vocab_size"):
        load_draft(tmp_path, target)


def test_a_directory_of_that_name_comes_first(target: TargetModel, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    RecallDraft.from_target(target).save_pretrained("lookup")
    assert isinstance(load_draft("lookup", target), RecallDraft)


def test_wrong_options_get_one_clear_line(target: TargetModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="num_heads"):
        LookupDraft.from_target(target, num_heads=0)
    with pytest.raises(UserError, match="min_ngram is 0"):
        LookupDraft.from_target(target, min_ngram=0)
    with pytest.raises(UserError, match="more than max_ngram, 1"):
        LookupDraft.from_target(target, min_ngram=2, max_ngram=1)
    with pytest.raises(UserError, match="no weights to train"):
        train(
            TrainConfig(output=str(tmp_path / "draft"), max_steps=1),
            target,
            [],
            LookupDraft.from_target(target),
        )
    with pytest.raises(UserError, match="the tree is 17 deep but the draft goes down 16 depths at most"):
        StaticDrafter(LookupDraft.from_target(target), TreeShape.chain(17))
