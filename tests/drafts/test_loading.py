"""What is wrong with a draft's files is said in one line before anything is built; broken weights only slow down."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from clover.cpu.int8 import sums_are_exact
from clover.drafts import DraftModel, load_draft, load_unbound
from clover.drafts.loading import SYSTEMS, find_system
from clover.errors import UserError
from clover.target import TargetModel, tensors_fingerprint
from clover.tree import CLOVER2_TREE, TreeShape
from tests.families import tiny_config, tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture
def saved(target: TargetModel, tmp_path: Path) -> Path:
    SYSTEMS["clover2"].from_target(target).save_pretrained(tmp_path)
    return tmp_path


def changed(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_heads", "5"), ("num_heads", None), ("num_heads", 0), ("num_heads", True), ("num_heads", 10**9),
        ("num_augmenting_layers", 10_000_000), ("embedding_scale", "a"), ("embedding_scale", -1.0),
        ("embedding", "other"), ("start", 5), ("hidden_state", "low_middle_high"), ("dtype", "zz"),
        ("target_config", {}), ("target_config", []), ("target_config", "llama"), ("tree", 5), ("tree", [[0, 0]]),
        ("tree", [["0"]]), ("tree", []), ("tree", [[rank] for rank in range(1025)]),
        ("draft_vocab_size", 0), ("draft_vocab_size", 10**9), ("model_type", "llama"), ("model_type", ["clover2"]),
    ],
)  # fmt: skip
def test_a_wrong_field_is_one_line(target: TargetModel, saved: Path, field: str, value: Any) -> None:
    changed(saved, **{field: value})
    with pytest.raises(UserError) as caught:
        load_draft(saved, target)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_hidden_layers", 10_000_000), ("hidden_size", 64), ("vocab_size", 51), ("model_type", "mistral"),
     ("num_hidden_layers", "2"), ("num_attention_heads", None), ("model_type", [])],
)  # fmt: skip
def test_another_target_is_refused_by_the_field_that_differs_and_at_once(
    target: TargetModel, saved: Path, field: str, value: Any
) -> None:
    described = json.loads((saved / "config.json").read_text())["target_config"]
    changed(saved, target_config={**described, field: value})
    started = time.process_time()
    with pytest.raises(UserError, match=f"trained for {field} = "):
        load_draft(saved, target)
    assert time.process_time() - started < 30, "nothing is built of it"


@pytest.mark.parametrize(
    ("field", "value"),
    [("head_dim", "a"), ("head_dim", -1), ("intermediate_size", []), ("rms_norm_eps", "a"), ("hidden_act", "a"),
     ("rope_parameters", []), ("rope_parameters", "a")],
)  # fmt: skip
def test_other_fields_of_the_target_are_one_line_too(
    target: TargetModel, saved: Path, field: str, value: Any
) -> None:
    described = json.loads((saved / "config.json").read_text())["target_config"]
    changed(saved, target_config={**described, field: value})
    with pytest.raises(UserError, match=r"^[^\n]*$"):
        load_draft(saved, target)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"model_type": "clover2", "tree": ' + 10_000 * "[" + 10_000 * "]" + "}", "recursion limit"),
        ("[]", "must hold a JSON object"),
        ("{", "not valid JSON"),
        ('{"model_type": "clover2", "x": "' + 20_000_000 * "a" + '"}', "larger"),
        ("{}", "is not a draft: its model_type is 'None'"),
    ],
    ids=["deep", "list", "cut", "long", "empty"],
)
def test_a_file_that_is_no_configuration(target: TargetModel, saved: Path, text: str, problem: str) -> None:
    (saved / "config.json").write_text(text)
    with pytest.raises(UserError, match=problem):
        load_draft(saved, target)


def test_damaged_weights(target: TargetModel, saved: Path) -> None:
    with pytest.raises(UserError, match="no draft at"):
        load_draft(saved / "nothing", target)
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot load the draft"):
        load_draft(saved, target)
    weights.write_bytes(whole)
    changed(saved, num_augmenting_layers=3)
    with pytest.raises(UserError, match="missing keys"):
        load_draft(saved, target)


def test_weights_that_no_file_holds_take_no_memory(target: TargetModel, saved: Path) -> None:
    described = json.loads((saved / "config.json").read_text())["target_config"]
    changed(saved, target_config=described | {"intermediate_size": 10**12})
    for load in (lambda: load_draft(saved, target), lambda: load_unbound(saved)):
        with pytest.raises(UserError, match="is damaged: config.json describes"):
            load()


def test_other_weights_are_told_where_they_can_be_known(
    saved: Path, recwarn: pytest.WarningsRecorder
) -> None:
    changed(saved, target_weights=tensors_fingerprint(TargetModel(tiny_model("llama", torch.float32))))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        load_draft(saved, TargetModel(tiny_model("llama", torch.float32).to(dtype)))
    assert not recwarn
    with pytest.warns(UserWarning, match="other weights"):
        load_draft(saved, TargetModel(tiny_model("llama", torch.float32, seed=1)))


@pytest.mark.skipif(not sums_are_exact(), reason="no exact products of int8 here")
def test_int8_weights_of_the_target_are_told(saved: Path, recwarn: pytest.WarningsRecorder) -> None:
    model = tiny_model("llama", torch.float32)
    plain, int8 = TargetModel(model), TargetModel(model, weights="int8")
    changed(saved, target_weights=tensors_fingerprint(plain))
    recwarn.clear()  # on some processors a warning tells how int8 is multiplied
    load_draft(saved, plain)
    assert not recwarn
    with pytest.warns(UserWarning, match="trained for the target with plain weights, which runs with int8"):
        load_draft(saved, int8)
    changed(saved, target_int8=True)
    recwarn.clear()
    load_draft(saved, int8)
    assert not recwarn
    with pytest.warns(UserWarning, match="with int8 weights, which runs with plain weights"):
        load_draft(saved, plain)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_make_it_unusable(target: TargetModel, saved: Path, bad: float) -> None:
    assert load_draft(saved, target).usable
    weights = load_file(saved / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = bad
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match="not finite: decoding is plain"):
        assert not load_draft(saved, target).usable


def test_a_draft_may_name_its_tree(target: TargetModel, saved: Path) -> None:
    assert load_draft(saved, target).config.tree_shape == CLOVER2_TREE
    changed(saved, tree=[[0], [1], [0, 0]])
    assert load_draft(saved, target).config.tree_shape == TreeShape.from_paths([(0,), (1,), (0, 0)])


@pytest.mark.parametrize("name", SYSTEMS)
def test_options_are_checked_by_name_and_type(name: str, target: TargetModel) -> None:
    system: type[DraftModel] = SYSTEMS[name]
    with pytest.raises(UserError, match=f"{name} has no option 'heads'; it has .*num_heads"):
        system.from_target(target, heads=2)
    for value in ("2", 2.0, True, None, [2], torch.zeros(1)):
        with pytest.raises(UserError, match=f"{name}: num_heads|{name} cannot be used"):
            system.from_target(target, num_heads=value)


def test_systems_by_name() -> None:
    assert find_system("medusa") is SYSTEMS["medusa"]
    with pytest.raises(UserError, match="no draft system 'clover3'; known are clover1, clover2"):
        find_system("clover3")
    with pytest.raises(UserError, match="system lookup was removed; use --tree lookup"):
        find_system("lookup")


def test_a_draft_of_the_removed_system_is_refused_with_what_replaces_it(
    target: TargetModel, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="the draft lookup was removed; use --tree lookup"):
        load_draft("lookup", target)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "lookup", "max_ngram": 3}))
    with pytest.raises(UserError, match="of the system lookup, which was removed; use --tree lookup"):
        load_draft(tmp_path, target)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_target_whose_code_came_with_it_is_named(name: str) -> None:
    class OwnConfig(LlamaConfig):
        model_type = "own_kind"

    config = OwnConfig(**tiny_config("llama").to_dict())
    config.auto_map = {"AutoModelForCausalLM": "modeling_own.OwnModel"}
    model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    with pytest.raises(UserError, match="its type, own_kind, is not one of transformers' own"):
        SYSTEMS[name].from_target(TargetModel(model))
