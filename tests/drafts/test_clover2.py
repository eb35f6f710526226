"""The Clover-2 draft against a slow reference that follows the paper's equations one position and head at a time."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clover.drafts import Clover2Draft, layers, load_draft
from clover.drafts.clover2 import CosineAttention
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE
from tests.drafts.checks import (
    check_session,
    make,
    norm,
)
from tests.families import HEADS, HIDDEN, VOCAB, tiny_model

PAPER: dict[str, object] = {"start": "last_layer", "embedding_scale": 1.0, "hidden_state": "pre_norm"}
FAMILIES = ("llama", "qwen3_six_heads", "gpt_neox", "opt", "gemma")
OPTIONS: tuple[dict[str, object], ...] = (
    {},
    PAPER,
    {"projector_embedding": False},
    {"embedding": "input"},  # the families go round so that it meets gpt_neox, whose two tables are not one
    {"num_augmenting_layers": 1},
    {"num_augmenting_layers": 3},
)
WITH_EVERY_FAMILY = OPTIONS[:1]


def attend(layer: CosineAttention, state: Tensor, embedding: Tensor) -> Tensor:
    """A(s, e) head by head: [H], [H] -> [H]."""
    query = layer.query.weight @ norm(state, layer.norm.weight) + layer.query.bias
    key, value = (layer.key_value.weight @ embedding + layer.key_value.bias).chunk(2)
    out, width = state.clone(), HIDDEN // HEADS
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        cosine = (query[part] @ key[part]) / (query[part].norm() * key[part].norm())
        out[part] += cosine * value[part]
    return out


def reference(
    target: TargetModel, draft: Clover2Draft, hidden: Tensor, tokens: list[int], drafted: list[int]
) -> list[Tensor]:
    """Logits of head 1, 2, … at the last position of a text, given the tokens drafted so far."""
    rows = target.embedding_weight if draft.config.embedding == "input" else target.lm_head_weight
    rows = rows * draft.config.embedding_scale
    folded = [attend(draft.fold, h, rows[x]) for h, x in zip(hidden, tokens[1:], strict=True)]
    state = draft.augment(torch.stack(folded)[None])[0, -1]
    outputs = [draft.first_projector.weight @ state + draft.first_projector.bias]
    for token in drafted:
        state = attend(draft.recur, state, rows[token])
        read = torch.cat((state, rows[token])) if draft.config.projector_embedding else state
        outputs.append(draft.projector.weight @ read + draft.projector.bias)
    return [target.logits(draft.output_norm(output)) for output in outputs]


def test_tables_follow_the_weights_and_need_room(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = make(Clover2Draft)
    first = draft.for_inference()
    assert draft.for_inference() is first
    with torch.no_grad():
        draft.projector.weight.mul_(2)
    assert draft.for_inference() is not first
    check_session(target, [draft.for_inference()], reference_of(draft))
    monkeypatch.setattr(layers, "MAX_TABLE", 0)
    assert draft.for_inference(full_precision=True).token_table is None
    check_session(target, [draft.for_inference(full_precision=True)], reference_of(draft))


def reference_of(draft: Clover2Draft):
    return lambda target, _, *rest: reference(target, draft, *rest)


def test_the_default_is_the_structure_of_the_paper() -> None:
    target = TargetModel(tiny_model("llama"))
    draft = Clover2Draft.from_target(target)
    assert draft.config.tree_shape == CLOVER2_TREE and draft.config.num_heads == 5
    assert len(draft.augment.layers) == 2
    assert draft.projector.weight.shape == (HIDDEN, 2 * HIDDEN)
    assert isinstance(draft.fold, CosineAttention) and isinstance(draft.recur, CosineAttention)


@torch.no_grad()
def test_starting_values_follow_the_target() -> None:
    target = TargetModel(tiny_model("qwen3"))
    draft = Clover2Draft.from_target(target, start="last_layer")
    last = target.layers[-1].state_dict()
    for layer in draft.augment.layers:
        assert all(torch.equal(layer.state_dict()[key], value) for key, value in last.items())
    for each in (draft, Clover2Draft.from_target(target)):
        assert torch.equal(each.augment.final_norm.weight, target.final_norm.weight)
        assert torch.equal(each.output_norm.weight, target.final_norm.weight)
        assert each.embed(torch.arange(VOCAB)).square().mean().item() == pytest.approx(1.0)
    identity = torch.eye(HIDDEN, 2 * HIDDEN)
    assert 0 < (draft.projector.weight - identity).std() < 0.02
    assert (draft.projector.weight - identity).mean().abs() < 0.002


def test_checkpoint_holds_no_weights_of_the_target(tmp_path: Path) -> None:
    target, draft = make(Clover2Draft)
    draft.for_inference()
    draft.save_pretrained(tmp_path)
    assert not any(VOCAB in value.shape for value in draft.state_dict().values())
    loaded = load_draft(tmp_path, target)
    assert "_name_or_path" not in loaded.config.target_config
    assert loaded.config.target_shape.rope_parameters == target.config.rope_parameters


@torch.no_grad()
def test_a_draft_of_a_bf16_target_serves_in_float32(tmp_path: Path) -> None:
    model = tiny_model("llama", torch.bfloat16)
    model.save_pretrained(tmp_path / "target")
    narrow = TargetModel.load(tmp_path / "target", dtype="bfloat16", device="cpu")
    Clover2Draft.from_target(narrow).to(torch.bfloat16).save_pretrained(tmp_path / "draft")
    wide = TargetModel.load(tmp_path / "target", dtype="float32", device="cpu")
    draft = load_draft(tmp_path / "draft", wide)
    assert {value.dtype for value in draft.state_dict().values()} == {torch.float32}
    session = draft.new_session(1, capacity=4)
    assert session.commit(torch.randn(1, 2, HIDDEN), torch.tensor([[3, 4]]), [2]).dtype == torch.float32


@torch.no_grad()
def test_the_default_in_float32_is_within_1e_5_of_the_reference() -> None:
    """Teacher forced and in chains, the reference in float64 over the same weights."""
    target = TargetModel(tiny_model("llama", torch.float32))
    exact_target, exact = make(Clover2Draft)
    draft = Clover2Draft.from_target(target).eval()
    draft.load_state_dict(exact.state_dict())
    exact.load_state_dict(draft.state_dict())
    exact.config.embedding_scale = draft.config.embedding_scale
    exact_target.model.load_state_dict(target.model.state_dict())
    tokens = torch.randint(VOCAB, (2, 24))
    hidden = target.train_forward(tokens).hidden

    def difference(found: Tensor, row: int, end: int, drafted: list[int]) -> float:
        text = tokens[row, : end + 1].tolist()
        expected = reference(exact_target, exact, hidden[row, :end].double(), text, drafted)[-1]
        return float((found - expected).abs().max())

    logits = draft.train_logits(draft(hidden, tokens))
    for depth, row, at in product(range(5), range(2), range(24 - 6)):
        forced = tokens[row, at + 2 : at + 2 + depth].tolist()
        assert difference(logits[depth, row, at], row, at + 1, forced) < 1e-5
    for each in (draft, draft.for_inference(full_precision=True)):
        session = each.new_session(2, capacity=4)
        for start, end in ((0, 9), (9, 12), (12, 13)):
            found, drafted = (
                session.commit(hidden[:, start:end], tokens[:, start + 1 : end + 1], [end - start] * 2),
                [],
            )
            for _ in range(16):
                for row in range(2):
                    assert difference(found[row], row, end, [step[row] for step in drafted]) < 1e-5
                best = found.argmax(-1, keepdim=True)
                drafted.append(best[:, 0].tolist())
                found = session.advance(torch.zeros_like(best), best)[:, 0]
