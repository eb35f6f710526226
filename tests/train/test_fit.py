"""The last step of a training: which tokens a draft keeps, and how much it copies."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from clover.data import Batches, Sample, SampleTexts, choose_held_out
from clover.drafts import DraftModel, RecallDraft, load_draft
from clover.drafts.base import SYSTEMS
from clover.drafts.copies import Guesses
from clover.target import TargetModel
from clover.train import TrainConfig, train
from clover.train.losses import HeadMetrics
from clover.train.objective import HeldOutMetrics, Objective, fit_to_held_out
from tests.families import VOCAB, tiny_model

COUNTS = torch.arange(VOCAB, 0, -1)  # lower tokens occur more often


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama", dtype=torch.float32))


def part_draft(target: TargetModel) -> RecallDraft:
    torch.manual_seed(0)
    draft = RecallDraft.from_target(target, draft_vocab_size=30)
    draft.reduce_vocabulary(torch.arange(30))
    return draft


def measured(*right: int) -> HeldOutMetrics:
    """Return what was measured of a draft that is right with the tokens of these indices, a thousand times each."""
    hits = torch.zeros(30, dtype=torch.long)
    hits[list(right)] = 1000
    return HeldOutMetrics(HeadMetrics(torch.ones(5, 1)), hits, None)


def test_the_tokens_that_a_draft_is_right_with_are_kept(target: TargetModel) -> None:
    config = TrainConfig(output="x", fit_vocabulary=True)
    fit_to_held_out(draft := part_draft(target), measured(*range(12)), config, COUNTS)
    assert draft.d2t is not None and draft.d2t.tolist() == list(range(12))
    assert draft.config.draft_vocab_size == 12


def test_the_vocabulary_stays_where_nobody_asks_to_fit_it(target: TargetModel) -> None:
    fit_to_held_out(draft := part_draft(target), measured(*range(12)), TrainConfig(output="x"), COUNTS)
    assert draft.d2t is not None and len(draft.d2t) == 30


@pytest.mark.parametrize("system", [kind for kind in SYSTEMS.values() if not kind.copies_text])
def test_a_system_that_cannot_copy_stays_as_it_is(target: TargetModel, system: type[DraftModel]) -> None:
    draft, some = system.from_target(target), torch.ones(4)
    before = draft.config.to_dict()
    guesses = Guesses(some.long(), some.bool(), some.bool(), some, some, some)
    fit_to_held_out(
        draft, HeldOutMetrics(HeadMetrics(torch.ones(5, 1)), some[:0], guesses), TrainConfig(output="x"), None
    )
    assert draft.config.to_dict() == before and draft.fit_copies(guesses) is None


def test_shares_that_are_set_stay(target: TargetModel) -> None:
    texts = [Sample((torch.arange(24) % 6).int(), torch.ones(24, dtype=torch.bool)) for _ in range(9)]
    config = TrainConfig(output="x", dtype="float32", draft={"copy_shares": None})
    for given, chosen in ((config, False), (replace(config, draft={}), True)):
        torch.manual_seed(0)
        draft = RecallDraft.from_target(target)
        found = Objective(given, draft).measure(Batches(texts, 24, 100, seed=0).epoch())
        assert found.guesses is not None
        right = found.guesses._replace(copy_right=torch.ones_like(found.guesses.copy_right))
        fit_to_held_out(draft, replace(found, guesses=right), given, None)
        assert (draft.config.copy_shares is not None) == chosen


def test_measuring_changes_nothing(target: TargetModel) -> None:
    draft = part_draft(target)
    before = {name: value.clone() for name, value in draft.state_dict().items()}
    texts = [Sample((torch.arange(24) % 6).int(), torch.ones(24, dtype=torch.bool)) for _ in range(9)]
    objective = Objective(TrainConfig(output="x", dtype="float32"), draft)
    first, second = (objective.measure(Batches(texts, 24, 100, seed=0).epoch()) for _ in range(2))
    assert torch.equal(first.metrics.sums, second.metrics.sums)
    after = draft.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert draft.config.copy_shares is None and draft.config.draft_vocab_size == 30


def test_a_finished_draft_is_saved_with_its_vocabulary(target: TargetModel, tmp_path: Path) -> None:
    """The numbers of held-out texts are those of the draft that is saved, not of the one before it was cut."""
    texts = [
        Sample((torch.arange(start, start + 24) % 20).int(), torch.ones(24, dtype=torch.bool))
        for start in range(160)
    ]
    config = TrainConfig(
        str(tmp_path / "draft"), max_steps=40, batch_tokens=120, validation_share=0.5, fit_vocabulary=True
    )
    draft = RecallDraft.from_target(target, draft_vocab_size=VOCAB)
    result = train(config, target, texts, draft, console=Console(file=StringIO()))
    loaded = load_draft(tmp_path / "draft", target)
    assert loaded.d2t is not None and len(loaded.d2t) == loaded.config.draft_vocab_size
    assert len(loaded.d2t) < VOCAB and torch.equal(loaded.d2t, draft.d2t)

    every = SampleTexts(texts)
    batches = Batches(every, 24, 120, seed=0, side=choose_held_out(every, 0.5, 24)).epoch()
    saved = Objective(config, loaded).measure(batches).metrics.summary(config.loss)
    assert result.validation is not None
    for name in ("distillation", "accuracy"):
        assert result.validation[name] == pytest.approx(saved[name], rel=1e-4)
