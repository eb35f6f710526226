"""What is measured of a draft and how it learns, against slow and obvious references."""

from __future__ import annotations

import pytest
import torch

from clover.data import Batches, Sample
from clover.data.batching import collate
from clover.drafts import DraftModel, MedusaDraft, RecallDraft
from clover.drafts.loading import SYSTEMS
from clover.errors import UserError
from clover.target import TargetModel
from clover.train import TrainConfig
from clover.train.losses import count_positions
from clover.train.objective import Objective
from clover.train.optimizers import make_optimizers
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
    objective = Objective(TrainConfig(output="x", dtype="float32"), draft)
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
    found = objective.measure(batches).hits
    assert torch.equal(found, expected) and found.sum() > 0


@pytest.mark.parametrize("system", SYSTEMS.values())
def test_a_step_is_that_of_plain_adamw(target: TargetModel, system: type[DraftModel]) -> None:
    """The fused optimizer against the one that is written out, on lm_heads of the draft's own, too."""
    torch.manual_seed(0)
    draft, plain = system.from_target(target), system.from_target(target)
    plain.load_state_dict(draft.state_dict())
    config = TrainConfig(output="x", dtype="float32", optimizer="adamw")
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    written_out = torch.optim.AdamW(trained, 1e-2, config.betas, weight_decay=0.0, fused=False)
    batches = list(Batches(samples(), 16, 60, seed=1).epoch())[:2]
    depths = draft.trained_depths
    counts = sum(count_positions(batch.predicted_mask, depths) for batch in batches)
    for one, optimizer in ((draft, make_optimizers(draft, config, 1e-2)["adamw"]), (plain, written_out)):
        torch.manual_seed(1)  # of the noise
        for batch in batches:
            Objective(config, one).loss(batch, depths, counts)[0].backward()
        optimizer.step()
    for ours, theirs in zip(draft.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_nothing_is_learnt_from_states_that_are_no_numbers() -> None:
    model = tiny_model("llama", dtype=torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    draft = RecallDraft.from_target(TargetModel(model), num_heads=2)
    texts = [torch.arange(9, 15), torch.tensor([8, 9, 10, 7, 8, 9])]
    batch = collate([Sample(text.int(), torch.ones(len(text), dtype=torch.bool)) for text in texts])
    objective = Objective(TrainConfig(output="x", dtype="float32"), draft)
    for use in (lambda: objective.loss(batch, 2, torch.ones(2)), lambda: objective.measure([batch])):
        with pytest.raises(UserError, match=r"in the text that begins \[8, 9, 10, 7, 8, 9\]"):
            use()
