"""The Clover-Recall draft against a slow reference that follows its equations one position and one head at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from clover.drafts import RecallDraft
from clover.drafts.recall import RecurrentLayer
from clover.errors import UserError
from clover.target import TargetModel
from tests.drafts.checks import (
    check_drop,
    check_gradients,
    check_round_trip,
    check_session,
    check_training,
    make,
    norm,
    silu,
    texts,
)
from tests.drafts.tree_walk import walk_everywhere
from tests.families import HEADS, HIDDEN, VOCAB, tiny_model

OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"mlp_ratio": 0.5},
    {"embedding_scale": 1.0},
    {"hidden_state": "pre_norm"},
)


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


def name(options: dict[str, object]) -> str:
    return "-".join(map(str, options.values())) or "default"


@pytest.mark.parametrize("options", OPTIONS, ids=name)
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "opt", "gemma"])
def test_training_and_session_agree_with_the_reference(family: str, options: dict[str, object]) -> None:
    target, draft = make(RecallDraft, family, **options)
    check_training(target, draft, reference)
    for each in (draft, draft.for_inference()):  # by the equations, and by tables of what tokens give
        check_session(target, each, reference)
        tokens, hidden = texts(target, draft, rows=3, length=16)

        def expected(hidden: Tensor, text: list[int], drafted: list[int]) -> Tensor:
            return reference(target, draft, hidden, text, drafted)[-1]

        walk_everywhere(each.new_session, hidden, expected, tokens)


@pytest.mark.parametrize("options", OPTIONS[:2], ids=name)
def test_rows_saving_and_learning(options: dict[str, object], tmp_path: Path) -> None:
    target, draft = make(RecallDraft, "qwen3", **options)
    check_drop(target, draft)
    check_round_trip(target, draft, tmp_path)
    check_gradients(target, draft)


@torch.no_grad()
def test_it_starts_with_the_target_s_own_state() -> None:
    target = TargetModel(tiny_model("llama"))
    draft = RecallDraft.from_target(target)
    assert torch.equal(draft.output_norm.weight, target.final_norm.weight)
    assert not draft.layer.output.weight.any()
    assert draft.embed(torch.arange(VOCAB)).square().mean().item() == pytest.approx(1.0)


def test_what_is_no_option_is_refused_by_name() -> None:
    target = TargetModel(tiny_model("llama"))
    with pytest.raises(UserError, match="recall has no option 'num_augmenting_layers'"):
        RecallDraft.from_target(target, num_augmenting_layers=1)
    for ratio in (0.0, 17.0, "1", True):
        with pytest.raises(UserError, match="recall: mlp_ratio is "):
            RecallDraft.from_target(target, mlp_ratio=ratio)
