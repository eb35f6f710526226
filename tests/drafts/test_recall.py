"""The Clover-Recall draft against a slow reference that follows its equations one position and one head at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clover.drafts import RecallDraft
from clover.drafts.recall import RecurrentLayer
from clover.target import TargetModel
from tests.drafts.checks import (
    norm,
    silu,
)
from tests.families import HEADS, HIDDEN, VOCAB, tiny_model

FAMILIES = ("llama", "qwen3_six_heads", "gpt_neox", "opt", "gemma")
OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"mlp_ratio": 0.5},
    {"embedding_scale": 1.0},
    {"hidden_state": "pre_norm"},
)
WITH_EVERY_FAMILY = OPTIONS[:1]


def recurrent(layer: RecurrentLayer, state: Tensor, embedding: Tensor, text: Tensor) -> Tensor:
    """R(s, e, u) head by head: [H], [H], [T, H] -> [H]."""
    joined = layer.of_state.weight @ norm(state, layer.norm.weight) + layer.of_token.weight @ embedding
    query, gate, up = joined[:HIDDEN], *joined[HIDDEN:].chunk(2)
    keys, values = (text @ layer.key_value.weight.T).chunk(2, dim=-1)
    found, width = torch.zeros_like(state), HIDDEN // HEADS
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        weights = (keys[:, part] @ query[part] / width**0.5).softmax(0)
        found[part] = weights @ values[:, part]
    return state + layer.output.weight @ torch.cat((found, silu(gate) * up))


def reference(
    target: TargetModel, draft: RecallDraft, hidden: Tensor, tokens: list[int], drafted: list[int]
) -> list[Tensor]:
    """Logits of depth 1, 2, … at the last position of a text, given the tokens drafted so far."""
    rows, fold = target.lm_head_weight * draft.config.embedding_scale, draft.fold
    folded = []
    for t, state in enumerate(hidden):
        newest = [rows[x] for x in tokens[t + 1 : 0 : -1]]  # the first token of a text is never one of them
        window = [*newest, *[torch.zeros_like(state)] * 2][:3]
        folded.append(
            norm(fold.linear.weight @ torch.cat((state, *window)) + fold.linear.bias, fold.norm.weight)
        )
    text, state, outputs = torch.stack(folded), hidden[-1], []
    for token in (tokens[-1], *drafted):
        state = recurrent(draft.layer, state, rows[token], text)
        projected = draft.projector.weight @ torch.cat((state, rows[token])) + draft.projector.bias
        state = draft.output_norm(projected)
        outputs.append(target.logits(state))
    return outputs


@torch.no_grad()
def test_it_starts_with_the_target_s_own_state() -> None:
    target = TargetModel(tiny_model("llama"))
    draft = RecallDraft.from_target(target)
    assert torch.equal(draft.output_norm.weight, target.final_norm.weight)
    assert not draft.layer.output.weight.any()
    assert draft.embed(torch.arange(VOCAB)).square().mean().item() == pytest.approx(1.0)
