"""Drafts that propose from a part of the vocabulary, against the same drafts with the other logits at -inf."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clover.drafting import StaticTree, own_shape, parse_tree
from clover.drafts import load_draft
from clover.drafts.loading import SYSTEMS
from clover.drafts.vocabulary import check_map, frequent_tokens
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.sampling import Sampler, SamplingParams
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE, TokenTree, TreeShape
from tests.drafting.scripted import draft_input
from tests.drafts.checks import check_gradients, check_round_trip, make, texts
from tests.engine.test_lossless import requests_of, run
from tests.families import VOCAB

TRAINED = tuple(SYSTEMS)
KNOWN = torch.tensor([0, 3, 4, 9, 11, 12, 17, 20, 21, 22, 30, 31, 33, 40, 41, 42, 48, 49])
TREES = ("clover2", "budget:6:0.95", "eagle2:8:3:4", "chain:9:0.05", "drawn:chain:3")
SETTINGS = (
    [SamplingParams()],
    [SamplingParams(temperature=1.0, seed=seed) for seed in range(3)] + [SamplingParams()],
    [SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=seed) for seed in range(3)],
)


class Masked:
    """A draft of the whole vocabulary that never proposes some tokens; it is its own session."""

    d2t = session_tokens = None

    usable = True

    def __init__(self, draft: Any, known: Tensor):
        self.draft, self.target, self.config = draft, draft.target, draft.config
        self.max_depth = draft.max_depth
        self.unknown = torch.ones(draft.target.vocab_size, dtype=torch.bool).index_fill(0, known, False)

    def for_inference(self, full_precision: bool = False) -> Masked:
        return self

    def new_session(self, batch_size: int, capacity: int) -> Masked:
        self.session = self.draft.new_session(batch_size, capacity)
        return self

    def commit(self, *positions: Any) -> Tensor:
        return self.session.commit(*positions).masked_fill(self.unknown, -torch.inf)

    def advance(self, *nodes: Any) -> Tensor:
        return self.session.advance(*nodes).masked_fill(self.unknown, -torch.inf)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def outcomes(target: TargetModel, draft: Any, tree: str, requests: list[Request]) -> list[Any]:
    found = run(Engine(target, draft, parse_tree(tree)), requests)
    return [(generation.tokens, generation.acceptance) for generation in found]


@torch.no_grad()
def grown(target: TargetModel, draft: Any, tree: str, settings: list[SamplingParams]) -> TokenTree:
    """The trees of one step over texts that are always the same."""
    torch.manual_seed(5)
    tokens, hidden = texts(target, draft, rows=len(settings))
    session = draft.new_session(len(settings), 9)
    logits = session.commit(hidden, tokens.roll(-1, 1), [len(row) - 1 for row in tokens])
    sampler = Sampler(settings, tokens.tolist(), target.vocab_size, "cpu")
    return parse_tree(tree).drafter(draft).grow(draft_input(session, logits, tokens[:, -1], sampler))


@pytest.mark.parametrize(
    ("name", "tree"),
    # a tree reads logits and does not ask whose they are, so other systems meet two of them each
    [*(("clover2", tree) for tree in TREES), *zip(("medusa", "eagle3", "eagle3", "medusa"), TREES[1:])],
)
def test_a_part_of_the_vocabulary_is_the_whole_with_the_rest_ruled_out(name: str, tree: str) -> None:
    target, whole = make(SYSTEMS[name])
    _, draft = make(SYSTEMS[name])
    draft.bind(target).reduce_vocabulary(KNOWN)
    for settings in SETTINGS:
        part, masked = (grown(target, one, tree, settings) for one in (draft, Masked(whole, KNOWN)))
        assert torch.equal(part.tokens, masked.tokens) and torch.equal(part.parents, masked.parents)
        assert torch.isin(part.tokens[:, 1:], KNOWN).all()
        if part.draws is not None and masked.draws is not None:
            torch.testing.assert_close(part.draws.draft_probs, masked.draws.draft_probs)
        requests = requests_of(len(settings), settings, 10)
        expected = outcomes(target, Masked(whole, KNOWN), tree, requests)
        assert outcomes(target, draft, tree, requests) == expected


@pytest.mark.parametrize("name", TRAINED)
def test_output_is_that_of_plain_decoding(name: str) -> None:
    target, draft = make(SYSTEMS[name], disturb=0.0)
    draft.reduce_vocabulary(KNOWN)
    for settings in SETTINGS:
        requests = requests_of(len(settings), settings, 10)
        expected = [generation.tokens for generation in run(Engine(target), requests)]
        for tree in ("chain:3", *TREES[1 : 3 if settings[0].temperature else 4]):
            assert [tokens for tokens, _ in outcomes(target, draft, tree, requests)] == expected


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "phi", "cohere"])  # with a bias, with a scale
@pytest.mark.parametrize("name", TRAINED)
def test_its_logits_are_rows_of_the_whole(name: str, family: str) -> None:
    target, draft = make(SYSTEMS[name], family)
    tokens, hidden = texts(target, draft)

    def logits() -> list[Tensor]:
        session = draft.new_session(2, 9)
        first = session.commit(hidden[:, :3], tokens[:, 1:4], [3, 2])
        second = session.advance(torch.zeros(2, 2, dtype=torch.long), torch.tensor([[1, 9], [48, 2]]))
        return [first, second, draft.train_logits(draft(hidden, tokens).movedim(0, -2))]

    whole = logits()
    draft.reduce_vocabulary(KNOWN)
    for part, expected in zip(logits(), whole):
        torch.testing.assert_close(part, expected[..., KNOWN], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TRAINED)
def test_it_is_saved_loaded_and_trained(name: str, tmp_path: Path) -> None:
    target, draft = make(SYSTEMS[name])
    draft.reduce_vocabulary(KNOWN)
    check_round_trip(target, draft, tmp_path)
    assert load_draft(tmp_path, target).config.draft_vocab_size == len(KNOWN)
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(stored["d2t"], KNOWN)
    assert not any("head_rows" in key for key in stored)
    check_gradients(target, draft)


def test_an_own_lm_head_keeps_its_rows_and_takes_the_targets_for_new_tokens() -> None:
    target, draft = make(SYSTEMS["medusa"])
    (before,) = (weight.detach().clone() for weight in draft.head_parameters)
    draft.reduce_vocabulary(KNOWN)
    assert torch.equal(draft.head_parameters[0], before[:, KNOWN])
    draft.reduce_vocabulary(torch.tensor([2, 9, 10, 49]))
    expected = target.lm_head_weight[[2, 9, 10, 49]].expand(draft.max_depth, -1, -1).clone()
    expected[:, [1, 3]] = before[:, [9, 49]]
    assert torch.equal(draft.head_parameters[0], expected)


def test_a_new_draft_has_the_first_tokens() -> None:
    for name in TRAINED:
        _, draft = make(SYSTEMS[name], draft_vocab_size=20)
        assert draft.d2t is not None and torch.equal(draft.d2t, torch.arange(20))
        assert all(weight.shape[-2] == 20 for weight in draft.head_parameters)


def test_frequent_tokens() -> None:
    counts = torch.tensor([1, 9, 1, 0, 9, 2])
    assert [frequent_tokens(counts, size).tolist() for size in (1, 3, 4)] == [[1], [1, 4, 5], [0, 1, 4, 5]]


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        *((size, "from 1 to the target's 50 tokens") for size in (0, -1, VOCAB + 1, 10**13)),
        *((size, "a valid integer") for size in ("20", True, 2.0, [5])),
    ],
)
def test_impossible_sizes_are_refused_in_one_line(size: object, wanted: str, tmp_path: Path) -> None:
    message = f"draft_vocab_size is {re.escape(repr(size))}; it must be {wanted}$"
    with pytest.raises(UserError, match=message):
        make(SYSTEMS["clover2"], draft_vocab_size=size)
    target, draft = make(SYSTEMS["clover2"], draft_vocab_size=4)
    draft.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "draft_vocab_size": size}))
    with pytest.raises(UserError, match=message):
        load_draft(tmp_path, target)


def test_fractions_are_no_tokens() -> None:
    with pytest.raises(UserError, match="d2t holds torch.float32, not token ids"):
        check_map(torch.tensor([0.5, 1.0]), VOCAB)


@pytest.mark.parametrize("tokens", [[-1, 3], [3, VOCAB], [4, 3], [3, 3]])
def test_impossible_tokens_are_refused(tokens: list[int], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="d2t"):
        check_map(torch.tensor(tokens), VOCAB)
    target, draft = make(SYSTEMS["clover2"], draft_vocab_size=2)
    draft.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({**stored, "d2t": torch.tensor(tokens)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="d2t"):
        load_draft(tmp_path, target)


def test_maps_and_sizes_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    target, draft = make(SYSTEMS["clover2"], draft_vocab_size=4)
    draft.save_pretrained(tmp_path)
    file, path = tmp_path / "model.safetensors", tmp_path / "config.json"
    stored, config = load_file(file), json.loads(path.read_text())
    for size in (5, None, 10**13, "4"):
        path.write_text(json.dumps({**config, "draft_vocab_size": size}))
        with pytest.raises(UserError):
            load_draft(tmp_path, target)
    path.write_text(json.dumps(config))
    for d2t in (torch.arange(5), torch.arange(4)[None], torch.empty(0, dtype=torch.long), None):
        rest = {key: value for key, value in stored.items() if key != "d2t"}
        save_file(rest if d2t is None else {**rest, "d2t": d2t}, file, {"format": "pt"})
        with pytest.raises(UserError):
            load_draft(tmp_path, target)


def test_the_draft_s_own_tree_has_no_more_children_than_it_knows_tokens() -> None:
    _, draft = make(SYSTEMS["recall"], draft_vocab_size=2)
    parse_tree("auto").policy(draft)
    assert StaticTree(own_shape(draft)) == parse_tree(
        "paths:0,1,00,01,10,11,000,001,010,011,100,0000,0001,00000,00001"
    )
    with pytest.raises(UserError, match="looks at the 4 best tokens of a node but the draft proposes from 2"):
        parse_tree("clover2").drafter(draft)
    draft.reduce_vocabulary(torch.tensor([9]))
    assert own_shape(draft) == TreeShape.chain(5)
    draft.config.copy_shares = [0.5] * 4
    assert own_shape(draft) == CLOVER2_TREE, "it proposes every token that stands in the text"
    parse_tree("clover2").drafter(draft)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("shares", [None, [0.5] * 4])
def test_a_draft_of_few_tokens_gives_the_tokens_of_plain_decoding(size: int, shares: Any) -> None:
    target, draft = make(SYSTEMS["recall"], draft_vocab_size=size)
    draft.config.copy_shares = shares
    requests = requests_of(3, SETTINGS[1])
    found, plain = (run(Engine(target, *drafts), requests) for drafts in ([draft], []))
    assert [one.tokens for one in found] == [one.tokens for one in plain]


def test_a_tree_that_is_wider_than_the_vocabulary_is_refused() -> None:
    _, draft = make(SYSTEMS["clover2"], draft_vocab_size=2)
    StaticTree(TreeShape.from_paths([[0], [1]])).drafter(draft)
    with pytest.raises(UserError, match="looks at the 3 best tokens of a node but the draft proposes from 2"):
        StaticTree(TreeShape.from_paths([[0], [1], [2]])).drafter(draft)
