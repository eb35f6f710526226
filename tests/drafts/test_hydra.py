"""The Hydra draft against a slow reference, and what it starts with."""

from __future__ import annotations

import torch
from torch import Tensor

from clover.drafts import HydraDraft
from clover.target import TargetModel
from tests.drafts.checks import (
    last_layer,
    silu,
    texts,
)
from tests.families import HIDDEN, tiny_model

FAMILIES = ("llama", "gpt_neox", "granite")
OPTIONS: tuple[dict[str, object], ...] = ({}, {"prefix_attention": True})
WITH_EVERY_FAMILY = OPTIONS


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


@torch.no_grad()
def test_it_starts_with_what_the_target_says() -> None:
    target = TargetModel(tiny_model("granite"))
    draft = HydraDraft.from_target(target)
    tokens, hidden = texts(target, draft)
    assert all(torch.equal(output, hidden) for output in draft(hidden, tokens))
    prefix = HydraDraft.from_target(target, prefix_attention=True).prefix
    assert prefix is not None
    last = target.layers[-1].state_dict()
    assert all(torch.equal(prefix.layers[0].state_dict()[name], value) for name, value in last.items())
