"""The Medusa draft against a slow reference, and what it starts with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.data import Sample, TextBatch
from clover.data.batching import collate
from clover.drafts import LossConfig, MedusaDraft
from clover.target import TargetModel
from clover.train import TrainConfig
from clover.train.chunked_loss import chunked_head_loss
from clover.train.losses import count_positions
from clover.train.objective import Objective
from clover.train.optimizers import make_optimizers
from tests.drafts.checks import (
    make,
    silu,
    texts,
)
from tests.families import VOCAB, tiny_config, tiny_model

OPTIONS: tuple[dict[str, object], ...] = ({}, {"own_lm_head": False})
WITH_EVERY_FAMILY = OPTIONS
FAMILIES = ("llama", "gpt_neox", "granite", "cohere", "phi")  # the last three scale logits or add a bias


def reference(
    target: TargetModel, draft: MedusaDraft, hidden: Tensor, tokens: list[int], drafted: list[int]
) -> list[Tensor]:
    """The lm_head's bias, scale and cap are read off the target's configuration."""
    state, logits = hidden[-1], []
    scale = getattr(target.config, "logit_scale", 1.0) / getattr(target.config, "logits_scaling", 1.0)
    for index in range(1 + len(drafted)):
        linear = draft.heads[index].linear
        output = state + silu(linear.weight @ state + linear.bias)
        weight = target.lm_head_weight if draft.lm_heads is None else draft.lm_heads[index]
        bias = 0 if target.head.linear.bias is None else target.head.linear.bias
        logits.append((weight @ output + bias) * scale)
    return logits


@torch.no_grad()
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_starts_with_what_the_target_says(family: str, own: bool) -> None:
    target = TargetModel(tiny_model(family))
    draft = MedusaDraft.from_target(target, own_lm_head=own)
    tokens, hidden = texts(target, draft)
    expected = target.model(tokens).logits
    logits = draft.train_logits(draft(hidden, tokens).movedim(0, -2))
    for head in range(5):
        torch.testing.assert_close(logits[..., head, :], expected, rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_logits_are_capped_where_the_target_caps_them() -> None:
    config = tiny_config("gemma3_text")
    config.final_logit_softcapping = 2.0
    target = TargetModel(tiny_model("gemma3_text", config=config))
    draft = MedusaDraft.from_target(target)
    tokens, hidden = texts(target, draft)
    torch.testing.assert_close(
        draft.logits(draft.heads[0](hidden)), target.model(tokens).logits, rtol=1e-6, atol=1e-8
    )


@torch.no_grad()
def test_a_depth_costs_one_lm_head_per_row_and_hears_no_token() -> None:
    target, draft = make(MedusaDraft)
    tokens, hidden = texts(target, draft)
    session = draft.new_session(2, capacity=4)
    first = session.commit(hidden, tokens, [9, 4])
    assert torch.equal(first, draft.new_session(2, 4).commit(hidden, tokens.flip(1), [9, 4]))
    logits = session.advance(torch.zeros(2, 5, dtype=torch.long), tokens[:, :5])
    assert logits.shape == (2, 5, VOCAB) and logits.stride(1) == 0


def test_the_loss_reaches_heads_and_lm_heads_alike() -> None:
    target, draft = make(MedusaDraft, num_heads=3)
    tokens, hidden = texts(target, draft)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    batch = TextBatch(tokens, mask, mask.sum(1))
    chunked_head_loss(draft, draft(hidden, tokens), hidden, batch, MedusaDraft.training_defaults.paper_loss)[
        0
    ].backward()
    found = {name: weight.grad for name, weight in draft.named_parameters()}
    draft.zero_grad()
    logits = draft.train_logits(draft(hidden, tokens).movedim(0, -2))
    total = sum(
        0.8**head
        * F.cross_entropy(logits[:, : -2 - head, head].flatten(0, 1), tokens[:, 2 + head :].flatten())
        for head in range(3)
    )
    assert isinstance(total, Tensor)
    total.backward()
    for name, weight in draft.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, msg=name)


@pytest.mark.parametrize("heads", [1, 2])
def test_logits_of_the_first_heads_take_no_other_lm_head(heads: int) -> None:
    _, draft = make(MedusaDraft)
    assert draft.lm_heads is not None and len(draft.lm_heads) > 2
    with torch.no_grad():
        draft.lm_heads.add_(torch.randn_like(draft.lm_heads))
    outputs = torch.randn(7, heads, draft.lm_heads.shape[-1], dtype=draft.lm_heads.dtype)
    one_by_one = torch.stack([draft.logits(outputs[:, head], head) for head in range(heads)], dim=1)
    torch.testing.assert_close(draft.train_logits(outputs), one_by_one)


def test_its_own_loss_is_that_of_labels() -> None:
    assert MedusaDraft.training_defaults.paper_loss == LossConfig(
        distillation_weight=0.0, label_weight=1.0, decay=0.8
    )
    assert isinstance(make(MedusaDraft)[1].lm_heads, nn.Parameter)


@pytest.mark.parametrize("own", [True, False])
def test_a_float64_target_trains_float32_weights(own: bool, tmp_path: Path) -> None:
    target, draft = make(MedusaDraft, own_lm_head=own)
    assert len(draft.head_parameters) == own
    assert target.dtype == torch.float64
    config = TrainConfig(str(tmp_path / "draft"), loss=LossConfig(0.5, 0.5, 0.5))
    objective = Objective(config, draft.float())
    batch = collate([Sample(torch.arange(16).int(), torch.ones(16, dtype=torch.bool))])
    depths = draft.trained_depths
    losses = []
    optimizers = make_optimizers(draft, config, lr=1e-2)
    for _ in range(2):
        loss, _ = objective.loss(batch, depths, count_positions(batch.predicted_mask, depths))
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    assert losses[1] < losses[0]
    assert {weight.dtype for weight in draft.parameters()} == {torch.float32}
