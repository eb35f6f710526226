"""The Clover-1 draft and its ablations against a slow reference that follows the paper's equations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clover.drafts import Clover1Draft
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE
from tests.drafts.checks import (
    last_layer,
    make,
    silu,
    texts,
)
from tests.families import HEADS, HIDDEN, VOCAB, tiny_model

OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"augmenting": "attention"},
    {"augmenting": "mlp"},
    {"augmenting": "none"},
    {"connection": "mlp"},
    {"connection": "none"},
    {"augmenting": "none", "connection": "none"},
    {"hidden_state": "pre_norm"},
    {"start": "last_layer"},
    {"embedding_scale": 1.0},
)
OUTPUTS = {  # the linear layer each half ends with
    "llama": ("self_attn.o_proj", "mlp.down_proj"),
    "granite": ("self_attn.o_proj", "mlp.down_proj"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
    "qwen3": ("self_attn.o_proj", "mlp.down_proj"),
}
FAMILIES = ("llama", "granite", "gpt_neox", "qwen3_six_heads")
WITH_EVERY_FAMILY = OPTIONS[:3]  # both halves of the augmenting block, and each


def augment(target: TargetModel, draft: Clover1Draft, hidden: Tensor) -> Tensor:
    """s_0 of the last position."""
    half = draft.config.augmenting
    if draft.augment is None:
        return hidden[-1]
    attention, mlp = OUTPUTS[target.name]
    silent = {"block": None, "attention": mlp, "mlp": attention}[half]
    return last_layer(target, draft.augment.layers[0].state_dict(), hidden, silent)[-1]


def connect(draft: Clover1Draft, state: Tensor, embedding: Tensor) -> Tensor:
    layer = draft.connect
    if layer is None:
        return state
    normed = state / (state.square().mean() + 1e-6).sqrt() * layer.norm.weight
    if draft.config.connection == "mlp":
        inner = silu(layer.inner.weight @ torch.cat((normed, embedding)) + layer.inner.bias)
        return state + layer.outer.weight @ inner + layer.outer.bias
    query, key, value = (
        layer.query.weight @ normed,
        layer.key.weight @ embedding,
        layer.value.weight @ embedding,
    )
    added, width = torch.empty_like(state), HIDDEN // HEADS
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        added[part] = query[part] @ key[part] / (query[part].norm() * key[part].norm()) * value[part]
    return state + silu(added)


def reference(
    target: TargetModel, draft: Clover1Draft, hidden: Tensor, tokens: list[int], drafted: list[int]
) -> list[Tensor]:
    state, logits = augment(target, draft, hidden), []
    for token, head in zip((tokens[-1], *drafted), draft.heads):
        row = target.lm_head_weight[token]
        state = connect(draft, state, draft.config.embedding_scale * row / row.norm())
        output = state + silu(head.linear.weight @ state + head.linear.bias)
        logits.append(target.logits(draft.output_norm(output)))
    return logits


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "olmo2", "gemma"])
def test_it_starts_as_the_layers_it_copies(family: str) -> None:
    target = TargetModel(tiny_model(family))
    draft = Clover1Draft.from_target(target, start="last_layer")
    last = target.layers[-1].state_dict()
    assert draft.augment is not None and draft.connect is not None
    assert all(torch.equal(draft.augment.layers[0].state_dict()[key], value) for key, value in last.items())
    state, embedding = torch.randn(2, HIDDEN, dtype=target.dtype), torch.randn(2, HIDDEN, dtype=target.dtype)
    assert torch.equal(draft.connect(state, embedding), state)
    plain = Clover1Draft.from_target(target, connection="mlp")
    assert plain.connect is not None and torch.equal(plain.connect(state, embedding), state)
    identity = torch.eye(HIDDEN, dtype=target.dtype)
    for weight in (draft.connect.query.weight, draft.connect.key.weight):
        assert 0 < (weight - identity).std() < 0.02 and (weight - identity).mean().abs() < 0.002


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_without_augmenting_block_it_starts_with_what_the_target_says(family: str) -> None:
    target = TargetModel(tiny_model(family))
    draft = Clover1Draft.from_target(target, augmenting="none", hidden_state="pre_norm")
    tokens = torch.randint(VOCAB, (2, 9))
    output = target.train_forward(tokens, "pre_norm")
    for head in draft(output.draft_hidden_states, tokens):
        torch.testing.assert_close(head, output.hidden, rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_without_connection_one_row_of_logits_serves_all_nodes() -> None:
    target, draft = make(Clover1Draft, connection="none")
    tokens, hidden = texts(target, draft)
    session = draft.new_session(2, capacity=4)
    session.commit(hidden, tokens, [9, 9])
    logits = session.advance(torch.zeros(2, 5, dtype=torch.long), tokens[:, :5])
    assert logits.shape == (2, 5, VOCAB) and logits.stride(1) == 0


def test_the_tree_is_no_deeper_than_the_heads() -> None:
    target, draft = make(Clover1Draft)
    assert draft.config.tree_shape == CLOVER2_TREE.cut(3)
    assert Clover1Draft.from_target(target, num_heads=5).config.tree_shape == CLOVER2_TREE
    draft.config.tree = [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]
    assert draft.config.tree_shape.max_depth == 4
