"""The EAGLE-3 draft against a reference written from the formulas: one position, head and key at a time, no cache."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clover.drafts import Eagle3Draft, load_draft
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.target import TargetModel
from tests.drafts.checks import check_round_trip
from tests.drafts.learning import check_learning
from tests.drafts.tree_walk import walk_everywhere
from tests.families import FAMILIES, HIDDEN, VOCAB, tiny_config, tiny_model

T = 15
EXACT = {"rtol": 1e-5, "atol": 1e-6}  # angles are float32


def make(family: str = "llama", **options: object) -> tuple[TargetModel, Eagle3Draft]:
    if family == "eagle3.1":
        family, options = "llama", options | {"version": "3.1"}
    config = tiny_config("llama" if family == "llama3" else family)
    if family == "llama3":  # whose scaling changes most frequencies
        named = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}
        config.rope_parameters = {"rope_type": "llama3", "original_max_position_embeddings": 16, **named}
    config.num_hidden_layers = 6  # so that the three layers that are read are three
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[-1:] * 6
    target = TargetModel(tiny_model(config.model_type, config=config))
    torch.manual_seed(3)
    draft = Eagle3Draft.from_target(target, **options).to(target.dtype).eval()
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)
    return target, draft


def normed(norm: torch.nn.RMSNorm, vector: Tensor) -> Tensor:
    return vector / (vector.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def frequencies(target: TargetModel, half: int) -> Tensor:
    """Of LLaMA's rotary positions, with the scaling of Llama 3 if the target has it."""
    named = getattr(target.config, "rope_parameters", None) or {}
    plain = named.get("rope_theta", 10000.0) ** (-torch.arange(half, dtype=torch.float64) / half)
    if named.get("rope_type") != "llama3":
        return plain
    low, high = named["low_freq_factor"], named["high_freq_factor"]
    turns = named["original_max_position_embeddings"] * plain / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return share * plain + (1 - share) * plain / named["factor"]


def turned(vector: Tensor, position: int, steps: Tensor) -> Tensor:
    """Rotary positions as multiplication by complex numbers."""
    half = len(vector) // 2
    angles = position * steps
    result = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((result.real, result.imag))


def last_output(
    target: TargetModel, draft: Eagle3Draft, states: list[Tensor], following: list[int]
) -> Tensor:
    """a [H] at the last of the pairs."""
    layer, shape = draft.layer, draft.layer_config
    base = frequencies(target, shape.head_dim // 2)
    inputs = [
        torch.cat((normed(layer.token_norm, target.embedding_weight[x]), normed(layer.state_norm, g)))
        for g, x in zip(states, following, strict=True)
    ]
    at, width, mixed = len(inputs) - 1, shape.head_dim, []
    for head in range(shape.num_attention_heads):
        query = turned(layer.query.weight[head * width :][:width] @ inputs[at], at, base)
        group = head * shape.num_key_value_heads // shape.num_attention_heads
        part = slice(group * width, (group + 1) * width)
        keys = [turned(layer.key.weight[part] @ n, j, base) for j, n in enumerate(inputs)]
        weights = torch.stack([query @ key / width**0.5 for key in keys]).softmax(0)
        mixed.append(sum(w * (layer.value.weight[part] @ n) for w, n in zip(weights, inputs, strict=True)))
    state = states[at] + layer.output.weight @ torch.cat(mixed)
    inner = normed(layer.mlp_norm, state)
    gate = layer.gate.weight @ inner
    return state + layer.down.weight @ (gate * gate.sigmoid() * (layer.up.weight @ inner))


def reference(
    target: TargetModel, draft: Eagle3Draft, hidden: Tensor, tokens: list[int], drafted: list[int]
) -> list[Tensor]:
    """What goes into the lm_head after the text and after each drafted token."""
    newer = draft.config.version == "3.1"
    if newer:
        hidden = torch.cat(
            [normed(norm, part) for norm, part in zip(draft.norms, hidden.chunk(3, -1), strict=True)], -1
        )
    states, following, outputs = [draft.fuse.weight @ h for h in hidden], tokens[1:], []
    for token in [*drafted, None]:
        last = last_output(target, draft, states, following)
        following = [*following, token]
        outputs.append(normed(draft.output_norm, last))
        states.append(outputs[-1] if newer else last)
    return outputs


@pytest.fixture(scope="module")
def llama() -> tuple[TargetModel, Eagle3Draft]:
    return make()


@pytest.mark.parametrize(
    "family", ["llama", "eagle3.1", "llama3", "qwen3", "qwen3_six_heads", "gpt_neox", "gemma", "opt"]
)
@torch.no_grad()
def test_session_and_reference_agree_everywhere(family: str) -> None:
    target, draft = make(family)
    tokens = torch.randint(VOCAB, (3, T + 1))

    def expected(hidden: Tensor, text: list[int], drafted: list[int]) -> list[Tensor]:
        return [target.logits(state) for state in reference(target, draft, hidden, text, drafted)]

    hidden = target.train_forward(tokens, "low_middle_high").draft_hidden_states
    walk_everywhere([draft.new_session], hidden, expected, tokens, EXACT)


@pytest.mark.parametrize("family", ["llama", "eagle3.1", "qwen3", "qwen3_six_heads", "gpt2"])
@torch.no_grad()
def test_training_and_reference_agree_at_every_depth(family: str) -> None:
    target, draft = make(family, num_heads=4)
    tokens = torch.randint(VOCAB, (2, 9))
    hidden = target.train_forward(tokens, "low_middle_high").draft_hidden_states
    outputs = draft(hidden, tokens)
    assert outputs.shape == (4, 2, 9, HIDDEN)
    for row, at in ((0, 0), (0, 4), (1, 2)):
        text = tokens[row].tolist()
        expected = reference(target, draft, hidden[row, : at + 1], text[: at + 2], text[at + 2 : at + 5])
        torch.testing.assert_close(outputs[:, row, at], torch.stack(expected), **EXACT)


@pytest.mark.parametrize("family", ["llama", "eagle3.1", "gemma", "gpt_neox"])
@torch.no_grad()
def test_training_is_what_a_session_forced_with_the_text_computes(family: str) -> None:
    target, draft = make(family)
    tokens = torch.randint(VOCAB, (2, T))
    hidden = target.train_forward(tokens, "low_middle_high").draft_hidden_states
    logits = draft.train_logits(draft(hidden, tokens))
    session = draft.new_session(2, capacity=4)
    for at in range(T - 6):
        found = session.commit(hidden[:, at : at + 1], tokens[:, at + 1 : at + 2], [1, 1])
        torch.testing.assert_close(found, logits[0, :, at], rtol=1e-9, atol=1e-9)
        for depth in range(1, 5):
            forced = tokens[:, at + 1 + depth, None]
            found = session.advance(torch.zeros_like(forced), forced)[:, 0]
            torch.testing.assert_close(found, logits[depth, :, at], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_padding_on_the_right_changes_nothing(llama: tuple[TargetModel, Eagle3Draft]) -> None:
    target, draft = llama
    tokens = torch.randint(VOCAB, (1, 9))
    padded = torch.cat((tokens, torch.full((1, 4), 7)), dim=1)
    outputs, longer = (
        draft(target.train_forward(text, "low_middle_high").draft_hidden_states, text)
        for text in (tokens, padded)
    )
    for depth in range(5):
        real = 9 - 1 - depth
        torch.testing.assert_close(outputs[depth, :, :real], longer[depth, :, :real], **EXACT)


@pytest.mark.parametrize("family", ["llama", "eagle3.1", "gemma", "gpt_neox"])
def test_gradients_reach_every_weight_and_go_through_the_steps(family: str) -> None:
    target, draft = make(family)
    tokens = torch.randint(VOCAB, (2, 9))
    hidden = target.train_forward(tokens, "low_middle_high").draft_hidden_states.requires_grad_()
    outputs = draft(hidden, tokens)
    outputs.square().mean().backward(retain_graph=True)
    for name, weight in draft.named_parameters():
        assert weight.requires_grad and weight.grad is not None and weight.grad.abs().sum() > 0, name
    hidden.grad = None
    outputs[3, 0, 2].sum().backward()
    reached = hidden.grad[0].abs().sum(-1) > 0
    assert reached.tolist() == [True] * 3 + [False] * 6, "step 3 at position 2 knows the states up to 2"


def test_training_under_bf16_autocast() -> None:
    target, draft = make()
    draft = draft.float()
    tokens = torch.randint(VOCAB, (2, 9))
    hidden = target.train_forward(tokens, "low_middle_high").draft_hidden_states.float()
    exact = draft(hidden, tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = draft(hidden, tokens)
    outputs.float().square().mean().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in draft.parameters())
    torch.testing.assert_close(outputs.float(), exact, rtol=0.1, atol=0.2)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_output_norm_starts_with_the_gain_of_the_targets(family: str) -> None:
    target = TargetModel(tiny_model(family))
    draft = Eagle3Draft.from_target(target)
    state = torch.randn(5, HIDDEN, dtype=torch.float64)
    state = state - state.mean(
        -1, keepdim=True
    )  # where mean and bias play no part, norms differ by their gain alone
    expected = target.final_norm(state) - target.final_norm(torch.zeros_like(state))
    torch.testing.assert_close(draft.output_norm(state), expected, rtol=1e-4, atol=1e-5)


def test_sizes_are_the_targets(llama: tuple[TargetModel, Eagle3Draft]) -> None:
    _, draft = llama
    assert draft.layer.key.weight.shape == (2 * HIDDEN // 4, 2 * HIDDEN)
    assert draft.layer.gate.weight.shape == (48, HIDDEN)
    assert make("qwen3")[1].layer.query.weight.shape == (4 * 12, 2 * HIDDEN)
    assert make("opt")[1].layer.gate.weight.shape == (48, HIDDEN)
    assert make("gpt2")[1].layer.gate.weight.shape == (4 * HIDDEN, HIDDEN)


def test_the_copy_on_disk_is_the_draft_and_nothing_of_the_target(
    llama: tuple[TargetModel, Eagle3Draft], tmp_path: Path
) -> None:
    target, draft = llama
    check_round_trip(target, draft, tmp_path)
    assert load_draft(tmp_path, target).max_depth == 16 and draft.trained_depths == 5
    assert not any(VOCAB in value.shape for value in draft.state_dict().values())


@pytest.mark.long
def test_it_learns(tmp_path: Path) -> None:
    check_learning(Eagle3Draft, tmp_path, Eagle3Draft.training_defaults.paper_loss, num_heads=3)


def test_the_engine_writes_what_plain_decoding_writes(llama: tuple[TargetModel, Eagle3Draft]) -> None:
    target, draft = llama
    requests = [Request((3, 4, 5), 12), Request((7,), 9), Request((8, 9, 10, 11, 12), 15)]

    def texts(engine: Engine) -> dict[int, tuple[int, ...]]:
        return {event.index: event.generation.tokens for event in engine.run(requests) if event.generation}

    assert texts(Engine(target, draft)) == texts(Engine(target))


def test_heads_of_an_odd_width_are_refused(llama: tuple[TargetModel, Eagle3Draft]) -> None:
    config = {"model_type": "opt", "hidden_size": 36, "num_attention_heads": 4}
    with pytest.raises(UserError, match="heads are 9 wide"):
        Eagle3Draft(llama[1].config_class(target_config=config))
