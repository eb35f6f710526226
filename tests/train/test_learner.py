"""What a learner counts beside its steps, against slow and obvious references."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from clover.data import Batches, Sample
from clover.drafts import DraftModel, MedusaDraft, RecallDraft, load_draft
from clover.drafts.loading import SYSTEMS
from clover.target import TargetModel
from clover.train import TrainConfig, train
from clover.train.guesses import guesses_of
from clover.train.learner import Learner
from tests.families import VOCAB, tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama", dtype=torch.float32))


def samples() -> list[Sample]:
    """Texts that count upwards, with the first token left out of what is learnt."""
    texts = [torch.arange(start, start + 9 + start % 7) % VOCAB for start in range(40)]
    return [Sample(text.int(), torch.arange(len(text)) > 0) for text in texts]


@pytest.mark.parametrize("system", [RecallDraft, MedusaDraft])
def test_hits_are_counted_token_by_token(target: TargetModel, system: type[DraftModel]) -> None:
    torch.manual_seed(0)
    draft = system.from_target(target, draft_vocab_size=20)
    draft.reduce_vocabulary(torch.arange(0, 40, 2))
    learner = Learner(TrainConfig(output="x", dtype="float32"), target, draft)
    batches = list(Batches(samples(), 16, 60, seed=1).epoch())
    expected = torch.zeros(20, dtype=torch.long)
    for batch in batches:
        hidden = target.train_forward(batch.tokens).hidden
        outputs = draft(hidden, batch.tokens, 1)[0]
        for row in range(len(batch.tokens)):
            for at in range(2, batch.tokens.shape[1]):
                if batch.predicted_mask[row, at]:
                    choice = int(draft.train_logits(outputs[row, at - 2][None])[0].argmax())
                    wanted = int(target.logits(hidden[row, at - 1]).argmax())
                    expected[choice] += int(2 * choice == wanted)
    found = learner.measure(batches).hits
    assert torch.equal(found, expected) and found.sum() > 0


@pytest.mark.parametrize("system", SYSTEMS.values())
def test_a_step_is_that_of_plain_adamw(target: TargetModel, system: type[DraftModel]) -> None:
    """The fused optimizer against the one that is written out, on lm_heads of the draft's own, too."""
    torch.manual_seed(0)
    draft, plain = system.from_target(target), system.from_target(target)
    plain.load_state_dict(draft.state_dict())
    config = TrainConfig(output="x", dtype="float32", optimizer="adamw", lr=1e-2)
    learners = [Learner(config, target, one) for one in (draft, plain)]
    learners[1].optimizers = {
        "adamw": torch.optim.AdamW(
            learners[1].parameters, 1e-2, config.betas, weight_decay=config.weight_decay, fused=False
        )
    }
    batches = list(Batches(samples(), 16, 60, seed=1).epoch())[:2]
    for learner in learners:
        torch.manual_seed(1)  # of the noise
        learner.step(batches, 1.0)
    for ours, theirs in zip(draft.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fit", [True, False])
def test_a_finished_draft_keeps_the_tokens_that_it_is_right_with(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit: bool
) -> None:
    config = TrainConfig(
        output=str(tmp_path / "draft"),
        max_steps=4,
        batch_tokens=120,
        validation_share=0.3,
        dtype="float32",
        lr=1e-3,
        fit_vocabulary=fit,
    )
    monkeypatch.setattr("clover.drafts.vocabulary._KEPT_HITS", 0.5)
    hits = torch.zeros(30, dtype=torch.long)
    hits[:12] = 10
    monkeypatch.setattr("clover.train.learner.guesses_of", lambda *given: (guesses_of(*given)[0], hits))
    draft = RecallDraft.from_target(target, draft_vocab_size=30)
    train(config, target, samples(), draft, console=Console(file=StringIO()))
    loaded = load_draft(tmp_path / "draft", target)
    assert loaded.d2t is not None and len(loaded.d2t) == loaded.config.draft_vocab_size
    assert (len(loaded.d2t) < 30) == fit
