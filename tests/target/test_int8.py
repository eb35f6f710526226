"""Targets with int8 weights: of every family, close to the plain model, and no part of it is rounded in silence."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import clover
from clover.cpu import int8
from clover.cpu.blocks import Streamlined
from clover.cpu.exact import ExactLayer
from clover.engine import Engine
from clover.errors import UserError
from clover.target import TargetModel, loading, tensors_fingerprint, weight_cache, weights_fingerprint
from tests.families import CONTEXT, EVERY_FAMILY, VOCAB, tiny_model
from tests.integrations.small import tokenizer
from tests.tiny import save_tiny_pair

pytestmark = pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_every_family(family: str) -> None:
    model = tiny_model(family, torch.float32)
    plain, target = TargetModel(model), TargetModel(model, weights="int8")
    assert target.copied is not None and not target.copied.left
    layers = [part for part in target.base.modules() if type(part) is ExactLayer]
    assert layers and type(target.head.linear) is ExactLayer
    tokens = torch.randint(VOCAB, (2, CONTEXT // 8), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, found = (one.logits(one.train_forward(tokens).hidden) for one in (plain, target))
    assert 1e-4 < (found - expected).norm() / expected.norm() < 0.1
    assert {
        name: id(weight) for name, weight in target.state_dict().items()
    }.keys() == model.state_dict().keys()


def test_fingerprints_tell_what_was_rounded() -> None:
    model = tiny_model("llama", torch.float32)
    plain, target = TargetModel(model), TargetModel(model, weights="int8")
    assert plain.weights is None and target.weights == "int8"
    assert weights_fingerprint(plain) != weights_fingerprint(target)
    assert tensors_fingerprint(plain) == tensors_fingerprint(target)


def test_loading(tmp_path: Path) -> None:
    place = save_tiny_pair(tmp_path)[0]
    target = TargetModel.load(place, weights="int8", device="cpu")
    assert target.weights == "int8" and target.dtype == torch.bfloat16
    assert TargetModel.load(place, "float32", "cpu", weights="int8").dtype == torch.float32
    with pytest.raises(UserError, match="unknown weights 'int4'; use int8"):
        TargetModel.load(place, weights="int4")
    model = clover.load(place, weights="int8", device="cpu", tree="plain")
    assert model.generate([1, 2, 3], max_new_tokens=4).tokens
    with pytest.raises(UserError, match="leave dtype, device, weights and exact out"):
        clover.load(target, weights="int8")
    with pytest.raises(UserError, match="compiled steps support neither int8 weights .* leave out --compile"):
        Engine(target, compile=True)


@pytest.mark.parametrize("options", [{"weights": "int8"}, {"exact": True}])
def test_compiled_steps_are_refused_before_loading(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TargetModel, "load", None)
    with pytest.raises(UserError, match="compiled steps support neither"):
        clover.load(compile=True, **options)


def test_slower_ways_of_exact_sums_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(int8, "products_are_exact", lambda: True)
        TargetModel(model, exact=True)
    monkeypatch.setattr(int8, "_way", lambda: int8._Sums.of_halves)
    with pytest.warns(UserWarning, match="so each row goes through int8 weights as two, which is slower"):
        TargetModel(model, weights="int8")
    monkeypatch.setattr(int8, "products_are_exact", lambda: False)
    with pytest.warns(UserWarning, match="as two and attention is computed in float64, which is slower"):
        TargetModel(model, weights="int8")
    with pytest.warns(UserWarning, match="so attention is computed in float64, which is slower"):
        TargetModel(model, exact=True)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_layers_run_few_operators(family: str) -> None:
    target = TargetModel(tiny_model(family, torch.bfloat16), weights="int8")
    assert target.exact and all(isinstance(layer, Streamlined) for layer in target.layers)


def test_int8_weights_of_a_name_on_the_hub_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weight_cache, "SMALLEST", 0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub, tokens = tmp_path / "models--owner--name", torch.arange(5)[None]

    def publish(seed: int) -> None:
        commit = f"{seed:040x}"
        model = tiny_model("llama", torch.float32, seed)
        model.save_pretrained(hub / "snapshots" / commit)
        tokenizer().save_pretrained(hub / "snapshots" / commit)
        (hub / "refs").mkdir(exist_ok=True)
        (hub / "refs/main").write_text(commit)

    def is_right() -> bool:
        directory = hub / "snapshots" / (hub / "refs/main").read_text()
        plain = TargetModel.load(directory, weights="int8", weight_cache=False)
        found = TargetModel.load("owner/name", weights="int8")
        with torch.no_grad():
            both = [one.logits(one.train_forward(tokens).hidden) for one in (found, plain)]
        return torch.equal(*both)

    for seed in (1, 2):  # of other files, other weights are kept
        publish(seed)
        assert is_right() and len(weight_cache.sizes()) == 2 * seed
        with monkeypatch.context() as patched:  # nothing is rounded or calibrated again
            patched.setattr(weight_cache, "_write", None)
            assert is_right()
    load = loading.load_model

    def load_other_files(*args: Any) -> Any:
        publish(3)
        return load(*args)

    monkeypatch.setattr(loading, "load_model", load_other_files)
    TargetModel.load("owner/name", weights="int8")
    assert len(weight_cache.sizes()) == 4  # what was loaded has no certain name
