"""The Clover-2 draft against a slow reference that follows the paper's equations one position at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clover.drafts import Clover2Draft, load_draft
from clover.drafts.layers import CosineAttention
from clover.errors import UserError
from clover.target import TargetModel
from clover.target.decoder import run_decoder
from clover.tree import CLOVER2_TREE, TreeShape
from tests.families import HEADS, HIDDEN, VOCAB, tiny_model

T = 9


def make(family: str = "llama", **options: object) -> tuple[TargetModel, Clover2Draft]:
    target = TargetModel(tiny_model(family))
    torch.manual_seed(3)
    draft = Clover2Draft.from_target(target, noise=0.3, **options).to(target.dtype).eval()
    return target, draft


def attend(layer: CosineAttention, state: Tensor, embedding: Tensor) -> Tensor:
    """A(s, e) head by head: [H], [H] -> [H]."""
    normed = F.rms_norm(state, (HIDDEN,), layer.norm.weight, eps=1e-6)
    query = layer.query(normed)
    key, value = layer.key_value(embedding).chunk(2)
    out, width = state.clone(), HIDDEN // HEADS
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        cosine = (query[part] @ key[part]) / (query[part].norm() * key[part].norm())
        out[part] += cosine * value[part]
    return out


def reference(
    target: TargetModel, draft: Clover2Draft, hidden: Tensor, tokens: list[int], drafted: list[int]
) -> list[Tensor]:
    """Outputs o of head 1, 2, … at the last position of a text, given the tokens drafted so far."""
    rows = target.lm_head_weight
    inputs = torch.stack([attend(draft.fold, h, rows[x]) for h, x in zip(hidden, tokens[1:], strict=True)])
    state = run_decoder(draft.augment, inputs[None])[0, -1]
    outputs = [draft.output_norm(draft.first_projector(state))]
    for token in drafted:
        state = attend(draft.recur, state, rows[token])
        outputs.append(draft.output_norm(draft.projector(torch.cat((state, rows[token])))))
    return outputs


@pytest.fixture(scope="module", params=["llama", "gpt_neox", "opt", "gemma"])
def pair(request: pytest.FixtureRequest) -> tuple[TargetModel, Clover2Draft]:
    return make(request.param)


@torch.no_grad()
def test_training_and_reference_agree(pair: tuple[TargetModel, Clover2Draft]) -> None:
    target, draft = pair
    tokens = torch.randint(VOCAB, (2, T))
    hidden = target.train_forward(tokens).hidden
    outputs = draft.train_outputs(hidden, tokens)
    for row, at in ((0, 0), (0, 3), (1, 2)):
        text = tokens[row].tolist()
        expected = reference(target, draft, hidden[row, : at + 1], text[: at + 2], text[at + 2 : at + 6])
        for head, output in enumerate(expected):
            torch.testing.assert_close(outputs[head, row, at], output)


@torch.no_grad()
def test_session_and_reference_agree_along_every_branch(pair: tuple[TargetModel, Clover2Draft]) -> None:
    target, draft = pair
    tokens = torch.randint(VOCAB, (2, T))
    hidden = target.train_forward(tokens).hidden
    session = draft.new_session(2, capacity=1)
    session.commit(hidden[:, :3], tokens[:, 1:4], [3, 2])
    first = session.commit(
        torch.stack((hidden[0, 3:6], hidden[1, 2:5])), torch.stack((tokens[0, 4:7], tokens[1, 3:6])), [1, 3]
    )
    ends = [4, 5]
    branches = torch.tensor([[4, 9], [11, 2]])
    second = session.advance(torch.zeros(2, 2, dtype=torch.long), branches)
    deeper = torch.tensor([[6, 7, 8], [3, 1, 5]])
    third = session.advance(torch.tensor([[1, 0, 1], [0, 0, 1]]), deeper)
    parents = [[1, 0, 1], [0, 0, 1]]
    for row, end in enumerate(ends):
        text = tokens[row, : end + 1].tolist()
        for node in range(3):
            parent = parents[row][node]
            drafted = [int(branches[row, parent]), int(deeper[row, node])]
            expected = [target.logits(o) for o in reference(target, draft, hidden[row, :end], text, drafted)]
            torch.testing.assert_close(first[row], expected[0])
            torch.testing.assert_close(second[row, parent], expected[1])
            torch.testing.assert_close(third[row, node], expected[2])


@torch.no_grad()
def test_dropped_and_cropped_rows_leave_the_others_alone() -> None:
    target, draft = make()
    tokens = torch.randint(VOCAB, (3, T))
    hidden = target.train_forward(tokens).hidden
    session = draft.new_session(3, capacity=4)
    session.commit(hidden[:, :5], tokens[:, 1:6], [5, 5, 5])
    session.drop(0)
    session.crop([3, 4])
    more = torch.stack((hidden[2, 3:5], hidden[1, 4:6]))
    found = session.commit(more, torch.stack((tokens[2, 4:6], tokens[1, 5:7])), [2, 2])
    for row, (text, end) in enumerate(((2, 5), (1, 6))):
        alone = draft.new_session(1, capacity=9)
        expected = alone.commit(hidden[text : text + 1, :end], tokens[text : text + 1, 1 : end + 1], [end])
        torch.testing.assert_close(found[row], expected[0])


def test_starting_values_follow_the_target() -> None:
    target, draft = make("qwen3")
    last = target.layers[-1].state_dict()
    for layer in draft.augment.layers:
        assert all(torch.equal(layer.state_dict()[name], value) for name, value in last.items())
    assert torch.equal(draft.output_norm.weight, target.final_norm.weight)
    near = Clover2Draft.from_target(target, noise=0.0).to(target.dtype)
    state, embedding = torch.randn(2, HIDDEN, dtype=target.dtype), torch.randn(2, HIDDEN, dtype=target.dtype)
    assert torch.equal(near.fold(state, embedding), state)


def test_checkpoint_holds_no_weights_of_the_target(tmp_path: Path) -> None:
    target, draft = make()
    draft.save_pretrained(tmp_path)
    assert not any(VOCAB in value.shape for value in draft.state_dict().values())
    loaded = load_draft(tmp_path, target)
    assert "_name_or_path" not in loaded.config.target_config
    assert loaded.config.target_shape.rope_parameters == target.config.rope_parameters
    for name, value in draft.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


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


def test_a_draft_may_name_its_tree(tmp_path: Path) -> None:
    target, draft = make()
    assert draft.config.tree_shape == CLOVER2_TREE
    draft.config.tree = [[0], [1], [0, 0]]
    draft.save_pretrained(tmp_path)
    assert load_draft(tmp_path, target).config.tree_shape == TreeShape.from_paths([(0,), (1,), (0, 0)])
    draft.config.tree = [[0, 0]]
    with pytest.raises(UserError):
        _ = draft.config.tree_shape


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", 64), ("vocab_size", 51), ("model_type", "mistral"), ("num_hidden_layers", 3)],
)
def test_another_target_is_refused_by_the_field_that_differs(
    tmp_path: Path, field: str, value: object
) -> None:
    target, draft = make()
    config = draft.config
    config.target_config = {**config.target_config, field: value}
    with pytest.raises(UserError, match=field):
        config.check_target(target)


def test_damaged_drafts_get_one_clear_line(tmp_path: Path) -> None:
    target, draft = make()
    with pytest.raises(UserError, match="no draft at"):
        load_draft(tmp_path / "nothing", target)
    draft.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot load the draft"):
        load_draft(tmp_path, target)
    weights.write_bytes(whole)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_augmenting_layers": 3}))
    with pytest.raises(UserError, match="missing keys"):
        load_draft(tmp_path, target)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(UserError, match="not a draft"):
        load_draft(tmp_path, target)
