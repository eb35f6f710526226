"""What a draft guesses in texts, and what is copied there, against a look at every position."""

from __future__ import annotations

import pytest
import torch

from clover.data import Batches, Sample
from clover.drafts import RecallDraft
from clover.target import TargetModel
from clover.train import TrainConfig
from clover.train.objective import Objective
from tests.families import tiny_model

TEXT = [5, 6, 8, 6, 8, 6, 12, 5, 6, 8, 4]
# at each position that is learnt: tokens that match before it, and the token that followed them
MATCHING = [0, 0, 1, 2, 3, 0, 1, 2, 3]
COPIES = [None, None, 8, 6, 8, None, 6, 8, 6]


@torch.no_grad()
def test_guesses_are_those_of_the_first_head_and_of_the_text() -> None:
    target = TargetModel(tiny_model("llama", dtype=torch.float32))
    torch.manual_seed(0)
    draft = RecallDraft.from_target(target, draft_vocab_size=20)
    draft.reduce_vocabulary(torch.arange(0, 40, 2))
    text = Sample(torch.tensor(TEXT), torch.ones(len(TEXT), dtype=torch.bool))
    objective = Objective(TrainConfig(output="x", dtype="float32"), draft)
    found = objective.measure(Batches([text], 16, 60, seed=1).epoch()).guesses
    assert found is not None and found.matching.tolist() == MATCHING
    hidden = target.train_forward(text.tokens[None]).hidden
    outputs = draft(hidden, text.tokens[None], 1)[0, 0]
    for at, copied in enumerate(COPIES):
        probs = draft.train_logits(outputs[at][None])[0].softmax(-1)
        right = int(target.logits(hidden[0, at + 1]).argmax())
        assert bool(found.own_right[at]) == (2 * int(probs.argmax()) == right)
        assert float(found.best_prob[at]) == pytest.approx(float(probs.max()), abs=1e-6)
        known = right < 40 and right % 2 == 0
        assert float(found.right_prob[at]) == pytest.approx(
            float(probs[right // 2]) if known else 0, abs=1e-6
        )
        if copied is not None:
            assert bool(found.copy_right[at]) == (copied == right)
            assert float(found.copy_prob[at]) == pytest.approx(float(probs[copied // 2]), abs=1e-6)
