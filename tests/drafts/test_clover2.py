"""The Clover-2 draft against a slow reference that follows the paper's equations one position at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clover.drafts import Clover2Draft, load_draft, token_products
from clover.drafts.layers import CosineAttention, RecurrentLayer, WindowLinear
from clover.errors import UserError
from clover.target import TargetModel
from clover.target.decoder import final_norm, run_decoder
from clover.tree import CLOVER2_TREE, TreeShape
from tests.drafts.checks import check_drop, check_gradients, check_round_trip, check_session, check_training
from tests.drafts.tree_walk import walk_everywhere
from tests.families import HEADS, HIDDEN, VOCAB, tiny_model

LAYERED: dict[str, object] = {"num_augmenting_layers": 1}
OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"first_decoder": "linear"},
    {"first_decoder": "attention"},
    {"projector_embedding": False},
    {"embedding": "input"},
    {**LAYERED, "num_augmenting_layers": 1},
    {**LAYERED, "num_augmenting_layers": 3},
    {"hidden_state": "pre_norm"},
    {"embedding_scale": 1.0},
    {**LAYERED, "start": "last_layer", "num_augmenting_layers": 2},
    {"recurrent_attention": True},
    {**LAYERED, "recurrent_attention": True, "recurrent_layer": 0.0},
    {"recurrent_layer": 0.5},
    {**LAYERED, "recurrent_output": False},
    {**LAYERED, "recurrent_output": False, "recurrent_attention": True, "recurrent_layer": 0.0},
)


def make(family: str = "llama", **options: object) -> tuple[TargetModel, Clover2Draft]:
    target = TargetModel(tiny_model(family))
    torch.manual_seed(3)
    draft = Clover2Draft.from_target(target, noise=0.3, **options).to(target.dtype).eval()
    if draft.layer is not None:  # which would start as the identity
        torch.nn.init.normal_(draft.layer.output.weight, std=0.3)
    return target, draft


def attend(layer: CosineAttention | None, state: Tensor, embedding: Tensor) -> Tensor:
    """A(s, e) head by head: [H], [H] -> [H]."""
    if layer is None:
        return state
    normed = F.rms_norm(state, (HIDDEN,), layer.norm.weight, eps=1e-6)
    query = layer.query(normed)
    key, value = layer.key_value(embedding).chunk(2)
    out, width = state.clone(), HIDDEN // HEADS
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        cosine = (query[part] @ key[part]) / (query[part].norm() * key[part].norm())
        out[part] += cosine * value[part]
    return out


def fold(draft: Clover2Draft, state: Tensor, embeddings: list[Tensor]) -> Tensor:
    """The newest embedding is the first."""
    if isinstance(draft.fold, CosineAttention):
        return attend(draft.fold, state, embeddings[0])
    linear = draft.fold.linear
    folded = (
        linear.weight[:, :HIDDEN] @ state + linear.weight[:, HIDDEN:] @ torch.cat(embeddings) + linear.bias
    )
    if isinstance(draft.fold, WindowLinear):
        return F.rms_norm(folded, (HIDDEN,), draft.fold.norm.weight, eps=1e-6)
    return folded


def layer_step(layer: RecurrentLayer | None, state: Tensor, embedding: Tensor, text: Tensor) -> Tensor:
    """R(s, e, text) head by head: [H], [H], [T, H] -> [H]."""
    if layer is None:
        return state
    normed = F.rms_norm(state, (HIDDEN,), layer.norm.weight, eps=1e-6)
    joined = layer.of_state.weight @ normed + layer.of_token.weight @ embedding
    query, gate, up = joined[:HIDDEN], *joined[HIDDEN:].chunk(2)
    keys, values = layer.key_value(text).chunk(2, dim=-1)
    found, width = torch.zeros_like(state), HIDDEN // HEADS
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        weights = (keys[:, part] @ query[part] / width**0.5).softmax(0)
        found[part] = weights @ values[:, part]
    return state + layer.output(torch.cat((found, F.silu(gate) * up)))


def reference(
    target: TargetModel, draft: Clover2Draft, hidden: Tensor, tokens: list[int], drafted: list[int]
) -> list[Tensor]:
    """Logits of head 1, 2, … at the last position of a text, given the tokens drafted so far."""
    rows = target.embedding_weight if draft.config.embedding == "input" else target.lm_head_weight
    rows = rows * draft.config.embedding_scale
    windows = [[rows[x] for x in tokens[t + 1 : 0 : -1]] for t in range(len(hidden))]
    if isinstance(draft.fold, WindowLinear):
        windows = [[*known, *[torch.zeros_like(known[0])] * 2][:3] for known in windows]
    else:
        windows = [known[:1] for known in windows]
    text = torch.stack([fold(draft, h, known) for h, known in zip(hidden, windows, strict=True)])
    outputs, state = [], hidden[-1]
    if draft.augment is None:
        drafted = [tokens[-1], *drafted]
    else:
        text = run_decoder(draft.augment, text[None])[0]
        state = text[-1]
        outputs = [draft.output_norm(draft.first_projector(state))]
    for token in drafted:
        state = outputs[-1] if draft.config.recurrent_output and outputs else state
        state = layer_step(draft.layer, attend(draft.recur, state, rows[token]), rows[token], text)
        both = torch.cat((state, rows[token])) if draft.config.projector_embedding else state
        outputs.append(draft.output_norm(draft.projector(both)))
    return [target.logits(output) for output in outputs]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "opt", "gemma"])
def test_training_and_session_agree_with_the_reference(family: str, options: dict[str, object]) -> None:
    target, draft = make(family, **options)
    check_training(target, draft, reference)
    check_session(target, draft, reference)
    tokens = torch.randint(VOCAB, (3, 16))

    def expected(hidden: Tensor, text: list[int], drafted: list[int]) -> Tensor:
        return reference(target, draft, hidden, text, drafted)[-1]

    hidden = target.train_forward(tokens, draft.config.hidden_state).read
    walk_everywhere(draft.new_session, hidden, expected, tokens)


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_products_of_tokens_make_no_difference(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = make("llama", **options)
    hidden, text = torch.randn(2, 5, HIDDEN, dtype=target.dtype), torch.randint(VOCAB, (2, 5))
    parents, tokens = torch.randn(2, 3, HIDDEN, dtype=target.dtype), torch.randint(VOCAB, (2, 3))
    slots = torch.tensor([[0, 2, 2], [1, 0, 1]])

    def logits() -> list[Tensor]:
        session = draft.new_session(2, 4)
        session.commit(hidden, text, [5, 3])
        session.states = parents
        return [session.advance(slots, tokens), session.states]

    for _ in range(2):
        with_products = logits()
        with monkeypatch.context() as patch:
            patch.setattr(token_products, "_MAX_BYTES", 0)
            assert draft.new_session(2, 4).products is None
            torch.testing.assert_close(with_products, logits(), rtol=1e-9, atol=1e-9)
        for weight in draft.parameters():  # which the products have to follow
            weight.add_(torch.randn_like(weight), alpha=0.1)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_rows_saving_and_learning(options: dict[str, object], tmp_path: Path) -> None:
    target, draft = make("qwen3", **options)
    check_drop(target, draft)
    check_round_trip(target, draft, tmp_path)
    check_gradients(target, draft)


@torch.no_grad()
def test_every_option_makes_another_draft() -> None:
    seen: list[Tensor] = []
    for options in OPTIONS:
        target, draft = make(**options)
        tokens = torch.arange(9)[None]
        hidden = target.train_forward(tokens, draft.config.hidden_state).read
        outputs = draft.train_outputs(hidden, tokens)
        assert all((outputs - other).abs().max() > 1e-3 for other in seen), options
        seen.append(outputs)


def test_a_configuration_from_before_the_options_says_the_same(tmp_path: Path) -> None:
    target, draft = make(
        recurrent_layer=0.0, recurrent_attention=True, first_decoder="attention", num_augmenting_layers=2
    )
    draft.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for option in (
        "first_decoder",
        "projector_embedding",
        "embedding",
        "embedding_scale",
        "start",
        "recurrent_layer",
        "recurrent_attention",
        "recurrent_output",
    ):
        del content[option]
    (tmp_path / "config.json").write_text(json.dumps(content))
    loaded = load_draft(tmp_path, target)
    config = loaded.config
    assert isinstance(loaded, Clover2Draft)
    assert (config.first_decoder, config.projector_embedding, config.embedding) == (
        "attention",
        True,
        "lm_head",
    )
    token = torch.tensor([5])
    assert torch.equal(loaded._embedding(token), target.lm_head_weight[token])
    assert loaded.state_dict().keys() == draft.state_dict().keys()
    assert {"fold.key_value.weight", "projector.weight", "first_projector.bias"} < draft.state_dict().keys()
    assert draft.projector.weight.shape == (HIDDEN, 2 * HIDDEN)


def test_what_is_no_option_is_refused_by_name() -> None:
    target = TargetModel(tiny_model("llama"))
    for option in ("first_decoder", "embedding", "hidden_state", "start"):
        with pytest.raises(UserError, match=f"{option} is 'other'"):
            Clover2Draft.from_target(target, **{option: "other"})
    with pytest.raises(UserError, match="embedding_scale is -1.0; it must be a number above 0"):
        Clover2Draft.from_target(target, embedding_scale=-1.0)
    with pytest.raises(UserError, match="without recurrent_attention it needs a recurrent_layer above 0"):
        Clover2Draft.from_target(target, recurrent_layer=0.0)
    for options in ({"recurrent_output": False}, {"recurrent_layer": 0.0, "recurrent_attention": True}):
        with pytest.raises(
            UserError, match="without augmenting layers it needs recurrent_output and a recurr"
        ):
            Clover2Draft.from_target(target, **options)
    with pytest.raises(UserError, match="no fewer than 0 augmenting layers"):
        Clover2Draft.from_target(target, num_augmenting_layers=-1)
    with pytest.raises(
        UserError, match='with augmenting layers first_decoder must be "attention" or "linear"'
    ):
        Clover2Draft.from_target(target, num_augmenting_layers=1, first_decoder="window")
    assert Clover2Draft.from_target(target, num_augmenting_layers=1).config.first_decoder == "linear"
    with pytest.raises(UserError, match="clover2: hidden_state is 'low_middle_high'"):
        Clover2Draft.from_target(target, hidden_state="low_middle_high")


def test_starting_values_follow_the_target() -> None:
    target, draft = make("qwen3", start="last_layer", num_augmenting_layers=2)
    last = target.layers[-1].state_dict()
    for layer in draft.augment.layers:
        assert all(torch.equal(layer.state_dict()[name], value) for name, value in last.items())
    assert torch.equal(draft.output_norm.weight, target.final_norm.weight)
    fresh = Clover2Draft.from_target(target, **LAYERED)
    assert torch.equal(final_norm(fresh.augment).weight, target.final_norm.weight)
    assert torch.equal(Clover2Draft.from_target(target).output_norm.weight, target.final_norm.weight)
    assert fresh._embedding(torch.arange(VOCAB)).square().mean().item() == pytest.approx(1.0)
    near = Clover2Draft.from_target(target, noise=0.0, first_decoder="linear").to(target.dtype)
    state, embedding = torch.randn(2, HIDDEN, dtype=target.dtype), torch.randn(2, HIDDEN, dtype=target.dtype)
    assert torch.equal(near.fold(state, embedding), state)
    plain = Clover2Draft.from_target(target, noise=0.0, first_decoder="linear", projector_embedding=False)
    assert torch.equal(plain.fold(state, embedding), state) and torch.equal(plain.projector(state), state)


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
    target, draft = make(**LAYERED)
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
