"""Copying from the text, against a search that compares token by token, and in sessions, engines and trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.drafting import parse_tree
from clover.drafts import RecallDraft, load_draft
from clover.drafts.copies import (
    LONGEST,
    Copied,
    CopySource,
    CopyWeights,
    Guesses,
    choose_mixed,
    copied,
    copied_in,
    extended,
    fit_copy_weights,
    mix_copies,
    runs_at_end,
)
from clover.engine import Engine
from clover.errors import UserError
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.drafts import test_recall
from tests.drafts.checks import check_drop, make
from tests.drafts.tree_walk import walk_everywhere
from tests.engine.test_lossless import requests_of, run, tokens_of
from tests.families import VOCAB, tiny_model

SHARES = [0.1, 0.3, 0.5, 0.8]
LETTERS = 3


def found_slowly(text: list[int], path: list[int]) -> tuple[int, int]:
    """What is copied after a path that goes on from the text, and how many tokens match."""
    best, whole = (0, 0), text + path
    for end in range(len(text) - 1):
        long = 0
        while long < min(LONGEST, end + 1) and text[end - long] == whole[-1 - long]:
            long += 1
        if long and long >= best[1]:
            best = (text[end + 1], long)
    return best


def mixed_slowly(logits: Tensor, text: list[int], path: list[int], shares: list[float]) -> Tensor:
    """Log-probabilities [V] of the mixture, of logits [V]."""
    token, long = found_slowly(text, path)
    probs = logits.softmax(-1)
    if long:
        probs = (1 - shares[long - 1]) * probs
        probs[token] += shares[long - 1]
    return probs.log()


def letters(*shape: int) -> Tensor:
    return torch.randint(LETTERS, shape, generator=torch.Generator().manual_seed(4))


def test_paths_of_ragged_texts_find_what_a_search_finds() -> None:
    tokens, lengths = letters(3, 12), [12, 1, 7]
    text = CopySource.of(tokens, torch.tensor(lengths)[:, None])
    runs, paths = runs_at_end(text), [[[]], [[]], [[]]]
    for depth in range(4):
        found = copied(runs, text)
        for row, length in enumerate(lengths):
            for node, path in enumerate(paths[row]):
                expected = found_slowly(tokens[row, :length].tolist(), path)
                assert int(found.matching[row, node]) == expected[1]
                assert not expected[1] or int(found.tokens[row, node]) == expected[0]
        slots = torch.tensor([[0, len(paths[0]) - 1, 0]] * 3)
        drafted = (letters(3, 3) + depth) % LETTERS
        runs = extended(runs.gather(1, slots[..., None].expand(-1, -1, 12)), text, drafted)
        paths = [[[*paths[row][s], int(t)] for s, t in zip(slots[row], drafted[row])] for row in range(3)]


def test_whole_texts_find_what_a_search_finds() -> None:
    tokens = letters(2, 40)
    found = copied_in(tokens)
    for row in range(2):
        for end in range(40):
            expected = found_slowly(tokens[row, : end + 1].tolist(), [])
            assert int(found.matching[row, end]) == expected[1]
            assert not expected[1] or int(found.tokens[row, end]) == expected[0]
    assert found.matching.max() == LONGEST


def test_the_mixture_is_a_distribution_over_all_tokens() -> None:
    logits = torch.randn(1, 3, 4, dtype=torch.float64)
    known = torch.tensor([1, 2, 5, 6])
    of = Copied(torch.tensor([[5, 3, 0]]), torch.tensor([[1, 4, 0]]))
    probs = mix_copies(logits, of, CopyWeights.of(SHARES, logits.device), known, 8).exp()[0]
    torch.testing.assert_close(probs.sum(-1), torch.ones(3, dtype=torch.float64))
    own = torch.zeros(3, 8, dtype=torch.float64).index_copy(1, known, logits[0].softmax(-1))
    torch.testing.assert_close(probs[0, 5], 0.9 * own[0, 5] + 0.1)
    torch.testing.assert_close(
        probs[1, 3], torch.tensor(0.8, dtype=torch.float64)
    )  # which the draft cannot say
    torch.testing.assert_close(probs[2], own[2])
    assert not probs[0, [0, 3, 4, 7]].any()


@pytest.mark.parametrize("known", [None, torch.tensor([1, 2, 5, 6])])
def test_the_choice_of_the_mixture_needs_no_whole_rows(known: Tensor | None) -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(50, 6, 8 if known is None else 4)
    of = Copied(torch.randint(8, (50, 6)), torch.randint(LONGEST + 1, (50, 6)))
    given = of, CopyWeights.of(SHARES, logits.device), known, 8
    chosen = choose_mixed(logits, *given)
    assert torch.equal(chosen, mix_copies(logits, *given).argmax(-1))
    assert 0 < int((chosen == of.tokens).sum()) < chosen.numel()


def guesses(shares: list[float], count: int = 40_000) -> Guesses:
    """Positions at which the copy is right as often as these shares say, and otherwise the draft at one in four."""
    torch.manual_seed(0)
    matching = torch.randint(LONGEST + 1, (count,))
    copy_right = torch.rand(count) < torch.tensor([0.0, *shares])[matching]
    own_right = ~copy_right & (torch.rand(count) < 0.25)
    quarter = torch.full((count,), 0.25, dtype=torch.float64)
    return Guesses(matching, own_right, copy_right, quarter * ~copy_right, quarter * 0, quarter)


def test_the_shares_are_those_by_which_the_texts_were_made() -> None:
    found = fit_copy_weights(guesses(SHARES))
    assert found is not None
    assert found == pytest.approx(SHARES, abs=0.02)  # four standard errors are 0.02 at most


def test_a_draft_that_copies_would_not_help_copies_nothing() -> None:
    assert fit_copy_weights(guesses([0.0] * LONGEST)) is None
    none = Guesses(*(part[:0] for part in guesses(SHARES)))
    assert fit_copy_weights(none) is None


@pytest.mark.parametrize("size", [None, VOCAB])
def test_sessions_mix_in_what_follows_in_the_text(size: int | None) -> None:
    target, draft = make(RecallDraft, copy_shares=SHARES, draft_vocab_size=size)

    def expected(hidden: Tensor, text: list[int], drafted: list[int]) -> list[Tensor]:
        own = test_recall.reference(target, draft, hidden, text, drafted)
        # no state of the target comes before the first token
        return [mixed_slowly(each, text[1:], drafted[:depth], SHARES) for depth, each in enumerate(own)]

    tokens = letters(3, 17)
    hidden = target.train_forward(tokens, draft.config.hidden_state).draft_hidden_states
    both = (draft.new_session, draft.for_inference().new_session)
    walk_everywhere(both, hidden, expected, tokens, letters=LETTERS)
    check_drop(target, draft)


@pytest.mark.parametrize(
    "tree", ["chain:4", "clover2", "budget:8", "eagle2:8", "chain:6:0.3", "drawn:clover2"]
)
def test_greedy_text_stays_that_of_plain_decoding(tree: str) -> None:
    target, draft = make(RecallDraft, copy_shares=SHARES, draft_vocab_size=20)
    requests = requests_of(3, [SamplingParams()], 40)
    plain = run(Engine(target), requests)
    assert tokens_of(run(Engine(target, draft, parse_tree(tree)), requests)) == tokens_of(plain)


def test_sampled_text_stays_that_of_plain_decoding() -> None:
    target, draft = make(RecallDraft, copy_shares=SHARES, draft_vocab_size=20)
    requests = requests_of(3, [SamplingParams(temperature=0.9, seed=3)], 40)
    plain = run(Engine(target), requests)
    assert tokens_of(run(Engine(target, draft, parse_tree("clover2")), requests)) == tokens_of(plain)


def test_repeated_text_is_accepted_that_an_untrained_draft_would_miss() -> None:
    """A target that says the next letter of a ring, whatever came before: after one round all is copied."""
    target = TargetModel(tiny_model("llama"))
    draft: Any = RecallDraft.from_target(target).to(target.dtype)
    plain = run(Engine(target), requests_of(1, [SamplingParams()], 80))[0].tokens
    period = next(
        p for p in range(1, 40) if plain[-p:] == plain[-2 * p : -p]
    )  # greedy tiny models go in circles
    assert period < 20
    steps = []
    for shares in (None, [0.9] * LONGEST):
        draft.config.copy_shares = shares
        found = run(Engine(target, draft, parse_tree("chain:4")), requests_of(1, [SamplingParams()], 80))[0]
        assert found.tokens == plain
        steps.append(found.acceptance.steps)
    assert steps[1] < 0.7 * steps[0]


def test_shares_are_kept_with_the_draft(tmp_path: Path) -> None:
    target, draft = make(RecallDraft, copy_shares=SHARES)
    draft.save_pretrained(tmp_path)
    loaded: Any = load_draft(tmp_path, target)
    assert loaded.config.copy_shares == SHARES and loaded.has_copy_weights
    assert (
        not make(RecallDraft)[1].has_copy_weights
        and not make(RecallDraft, copy_shares=[0.0] * LONGEST)[1].has_copy_weights
    )


@pytest.mark.parametrize("value", [[0.1], [0.1] * 5, [1.0] * 4, [-0.1] * 4, "abc"])
def test_shares_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match="recall: copy_shares"):
        RecallDraft.from_target(TargetModel(tiny_model("llama")), copy_shares=value)
