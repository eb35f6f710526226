"""The EAGLE-1 draft against a reference that runs every path of the tree anew, pair by pair and without a cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clover.drafts import EagleDraft, load_draft
from clover.engine import Engine, Request
from clover.target import TargetModel
from tests.drafts.checks import check_round_trip, make
from tests.drafts.learning import check_learning
from tests.drafts.tree_walk import EXACT, walk_everywhere
from tests.families import HEADS, HIDDEN, VOCAB

T = 15
Layer = Callable[[EagleDraft, Tensor], Tensor]  # inputs [n, H] -> the last output [H]


def whole_text(draft: EagleDraft, inputs: Tensor) -> Tensor:
    return draft.layer(inputs[None])[0, -1]


def llama_layer(draft: EagleDraft, inputs: Tensor) -> Tensor:
    """The layer from its formulas, one head and key at a time; nothing norms its input or its output."""
    layer = draft.layer.layers[0]
    attention, mlp, width, at = layer.self_attn, layer.mlp, HIDDEN // HEADS, len(inputs) - 1
    mixed = []
    for head in range(HEADS):
        query = turned(attention.q_proj(inputs[at])[head * width :][:width], at)
        group = slice(head // 2 * width, (head // 2 + 1) * width)
        keys = [turned(attention.k_proj(vector)[group], j) for j, vector in enumerate(inputs)]
        weights = torch.stack([query @ key / width**0.5 for key in keys]).softmax(0)
        values = [attention.v_proj(vector)[group] for vector in inputs]
        mixed.append(sum(w * v for w, v in zip(weights, values, strict=True)))
    state = inputs[at] + attention.o_proj(torch.cat(mixed))
    normed = layer.post_attention_layernorm(state)
    return state + mlp.down_proj(F.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))


def turned(vector: Tensor, position: int) -> Tensor:
    """LLaMA's rotary positions, base 10000, as complex factors; of float32, as in transformers."""
    half = len(vector) // 2
    angles = position / 10000.0 ** (torch.arange(half).float() / half)
    factors = torch.complex(angles.cos().double(), angles.sin().double())
    result = torch.complex(vector[:half], vector[half:]) * factors
    return torch.cat((result.real, result.imag))


def reference(
    target: TargetModel,
    draft: EagleDraft,
    layer: Layer,
    hidden: Tensor,
    tokens: list[int],
    drafted: list[int],
) -> list[Tensor]:
    """Predicted states after the text and after each drafted token."""
    states, following, outputs = list(hidden), tokens[1:], []
    rows = target.embedding_weight
    for token in [*drafted, None]:
        pairs = [torch.cat((rows[x], f)) for f, x in zip(states, following, strict=True)]
        inputs = torch.stack([draft.projector.weight @ pair + draft.projector.bias for pair in pairs])
        outputs.append(layer(draft, inputs))
        states, following = [*states, outputs[-1]], [*following, token]
    return outputs


@pytest.fixture(scope="module")
def llama() -> tuple[TargetModel, EagleDraft]:
    return make(EagleDraft)


@pytest.mark.parametrize(
    ("family", "layer"),
    [
        ("llama", llama_layer),
        ("qwen2", whole_text),
        ("gpt_neox", whole_text),
        ("gemma", whole_text),
        ("olmo2", whole_text),
        ("opt", whole_text),
        ("phi", whole_text),
    ],
)
@torch.no_grad()
def test_session_and_reference_agree_everywhere(family: str, layer: Layer) -> None:
    target, draft = make(EagleDraft, family)
    tokens = torch.randint(VOCAB, (3, T + 1))

    def expected(hidden: Tensor, text: list[int], drafted: list[int]) -> list[Tensor]:
        return [target.logits(state) for state in reference(target, draft, layer, hidden, text, drafted)]

    walk_everywhere([draft.new_session], target.train_forward(tokens).hidden, expected, tokens)


@pytest.mark.parametrize(("family", "layer"), [("llama", llama_layer), ("gpt_neox", whole_text)])
@torch.no_grad()
def test_training_and_reference_agree(family: str, layer: Layer) -> None:
    target, draft = make(EagleDraft, family)
    tokens = torch.randint(VOCAB, (2, 7))
    hidden = target.train_forward(tokens).hidden
    outputs = draft(hidden, tokens)
    assert outputs.shape == (draft.trained_depths, 2, 7, HIDDEN)
    for row, at in ((0, 0), (0, 5), (1, 3)):
        text = tokens[row, : at + 2].tolist()
        (expected,) = reference(target, draft, layer, hidden[row, : at + 1], text, [])
        torch.testing.assert_close(outputs[0, row, at], expected, **EXACT)


@pytest.mark.parametrize("family", ["llama", "gemma", "gpt_neox"])
def test_gradients_reach_every_weight(family: str) -> None:
    target, draft = make(EagleDraft, family)
    tokens = torch.randint(VOCAB, (2, 7))
    draft(target.train_forward(tokens).hidden, tokens).square().mean().backward()
    for name, weight in draft.named_parameters():
        assert weight.requires_grad and weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_the_copy_on_disk_is_the_draft_and_nothing_of_the_target(
    llama: tuple[TargetModel, EagleDraft], tmp_path: Path
) -> None:
    target, draft = llama
    check_round_trip(target, draft, tmp_path)
    assert load_draft(tmp_path, target).max_depth == 16 and draft.trained_depths == 1
    assert not any(VOCAB in value.shape for value in draft.state_dict().values())
    names = draft.state_dict()
    assert not [name for name in names if "input_layernorm" in name or name.endswith("stack.norm.weight")]


@pytest.mark.long
def test_it_learns(tmp_path: Path) -> None:
    check_learning(EagleDraft, tmp_path, EagleDraft.training_defaults.paper_loss, num_heads=3)


def test_the_engine_writes_what_plain_decoding_writes(llama: tuple[TargetModel, EagleDraft]) -> None:
    target, draft = llama
    requests = [Request((3, 4, 5), 12), Request((7,), 9), Request((8, 9, 10, 11, 12), 15)]

    def texts(engine: Engine) -> dict[int, tuple[int, ...]]:
        return {event.index: event.generation.tokens for event in engine.run(requests) if event.generation}

    assert texts(Engine(target, draft)) == texts(Engine(target))
