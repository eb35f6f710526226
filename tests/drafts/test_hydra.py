"""The Hydra draft against a slow reference, and what it starts with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from clover.drafts import HydraDraft
from clover.errors import UserError
from clover.target import TargetModel
from tests.drafts.checks import (
    check_drop,
    check_gradients,
    check_round_trip,
    check_session,
    check_training,
    last_layer,
    make,
    silu,
    texts,
)
from tests.families import HIDDEN, tiny_model

FAMILIES = ("llama", "gpt_neox", "granite")
PREFIX = pytest.mark.parametrize("prefix", [False, True])


def reference(
    target: TargetModel, draft: HydraDraft, hidden: Tensor, tokens: list[int], drafted: list[int]
) -> list[Tensor]:
    state, path, logits = hidden[-1], tokens[-1:], []
    if draft.prefix is not None:
        norm = draft.prefix.stack.get_submodule({"gpt_neox": "final_layer_norm"}.get(target.name, "norm"))
        state = norm(last_layer(target, draft.prefix.layers[0].state_dict(), hidden)[-1])
    for index in range(1 + len(drafted)):
        inner, _, outer = draft.heads[index]
        known = torch.cat((state, *(target.embedding_weight[token] for token in path)))
        assert len(known) == HIDDEN * (index + 2)
        mixed = outer.weight @ silu(inner.weight @ known + inner.bias) + outer.bias
        logits.append(target.logits(state + mixed))
        path = path + drafted[index : index + 1]
    return logits


@PREFIX
@pytest.mark.parametrize("family", FAMILIES)
def test_training_and_session_agree_with_the_reference(family: str, prefix: bool) -> None:
    target, draft = make(HydraDraft, family, prefix_attention=prefix)
    check_training(target, draft, reference)
    check_session(target, draft, reference)


@PREFIX
def test_rows_saving_and_learning(prefix: bool, tmp_path: Path) -> None:
    target, draft = make(HydraDraft, prefix_attention=prefix, num_heads=3)
    check_drop(target, draft)
    check_round_trip(target, draft, tmp_path)
    check_gradients(target, draft)


@torch.no_grad()
def test_it_starts_with_what_the_target_says() -> None:
    target = TargetModel(tiny_model("granite"))
    draft = HydraDraft.from_target(target)
    tokens, hidden = texts(target, draft)
    assert all(torch.equal(output, hidden) for output in draft.train_outputs(hidden, tokens))
    prefix = HydraDraft.from_target(target, prefix_attention=True).prefix
    assert prefix is not None
    last = target.layers[-1].state_dict()
    assert all(torch.equal(prefix.layers[0].state_dict()[name], value) for name, value in last.items())


def test_what_is_no_option_is_refused_by_name() -> None:
    target = TargetModel(tiny_model("llama"))
    with pytest.raises(UserError, match="hydra: num_heads is 0"):
        HydraDraft.from_target(target, num_heads=0)
    with pytest.raises(UserError, match="hydra: hidden_state is 'pre_norm'"):
        HydraDraft.from_target(target, hidden_state="pre_norm")
