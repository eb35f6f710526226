"""A finished store: what is read back is what the target says, and a damaged or foreign one is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clover.data import Batches
from clover.data.features import (
    FeatureStore,
    check_store,
    compute_features,
    read_index,
    write_features,
)
from clover.drafts import Eagle3Draft, RecallDraft
from clover.errors import UserError
from clover.files import checksum
from clover.target import TargetModel
from clover.train import TrainConfig, train
from tests.data.features.conftest import config, samples
from tests.families import VOCAB, tiny_model


@pytest.mark.parametrize("kind", ["post_norm", "pre_norm", "low_middle_high"])
def test_states_are_those_of_the_target(target: TargetModel, tmp_path: Path, kind: str) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts, kind), tmp_path / "s")
    read = FeatureStore(tmp_path / "s")
    assert read.tokens == sum(read[row].size for row in range(len(read)))
    batch = next(Batches(read, 12, 60, seed=1))
    found, expected = read.features(batch, kind), compute_features(target, batch.tokens, kind)
    real = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    for a, b in ((found.hidden_input, expected.hidden_input), (found.hidden_target, expected.hidden_target)):
        torch.testing.assert_close(a[real].to(b.dtype), b[real], rtol=2**-8, atol=1e-6)
    after_norm = read.features(batch, "post_norm")
    assert torch.equal(after_norm.hidden_input, found.hidden_target)
    opening = batch.opening(4)
    torch.testing.assert_close(read.features(opening, kind).hidden_target[0], found.hidden_target[0, :4])
    with pytest.raises(AssertionError, match="not of a store"):  # rather than the states of fewer texts
        read.features(replace(batch, windows=(*batch.windows, texts[0])), kind)


def test_windows_of_windows_find_their_states(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts), tmp_path / "s")
    read = FeatureStore(tmp_path / "s")
    whole = read[0]
    part = whole.part(3, 9).part(1, 4)
    assert part.tokens.tolist() == whole.tokens[4:7].tolist()
    assert torch.equal(
        part.shard.states(part, "post_norm")[1], whole.shard.states(whole, "post_norm")[1][4:7]
    )


def test_an_older_store_says_that_it_must_be_written_again(target: TargetModel, tmp_path: Path) -> None:
    texts, index = samples(7), tmp_path / "s" / "index.json"
    write_features(target, texts, config(target, texts), tmp_path / "s")
    entry = json.loads(index.read_text())
    del entry["config"]["dtype"]
    index.write_text(json.dumps(entry))
    for read in (FeatureStore, read_index):
        with pytest.raises(UserError, match="in which dtype .*; delete the store and run clover features"):
            read(tmp_path / "s")


def test_another_target_and_another_kind_are_refused(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts), tmp_path / "s")
    read, other = FeatureStore(tmp_path / "s"), TargetModel(tiny_model("llama", seed=5))
    check_store(read, target, RecallDraft.from_target(target))
    with pytest.raises(UserError, match="another target"):
        check_store(read, other, RecallDraft.from_target(other))
    with pytest.raises(UserError, match="reads low_middle_high states"):
        check_store(read, target, Eagle3Draft.from_target(target))


def test_a_store_of_three_layers_serves_drafts_that_read_the_last(
    target: TargetModel, tmp_path: Path
) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts, "low_middle_high"), tmp_path / "s")
    check_store(FeatureStore(tmp_path / "s"), target, RecallDraft.from_target(target))


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "index", "swap"])
def test_a_damaged_store_is_refused(target: TargetModel, tmp_path: Path, damage: str) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts), tmp_path / "s")
    shard, index = tmp_path / "s" / "00000.safetensors", tmp_path / "s" / "index.json"
    content = bytearray(shard.read_bytes())
    if damage == "flip":
        content[-3] ^= 1
    shard.write_bytes(content[:-5] if damage == "cut" else content)
    if damage == "missing":
        shard.unlink()
    if damage == "index":
        index.write_text("[" * 10_000)
    if damage == "swap":
        entry = json.loads(index.read_text())
        entry["shards"][0]["name"] = "../../x.safetensors"
        index.write_text(json.dumps(entry))
    with pytest.raises(UserError):
        read = FeatureStore(tmp_path / "s")
        assert damage == "flip"  # which the hash alone tells, once the states are read
        read.features(next(Batches(read, 12, 60, seed=1)), "post_norm")


def test_a_shard_that_may_not_be_read_is_not_called_damaged(target: TargetModel, tmp_path: Path) -> None:
    texts, shard = samples(7), tmp_path / "s" / "00000.safetensors"
    write_features(target, texts, config(target, texts), tmp_path / "s")
    shard.unlink()
    shard.mkdir()
    with pytest.raises(UserError, match=r"cannot read .*00000\.safetensors: is a directory"):
        FeatureStore(tmp_path / "s")


def forge(path: Path, **changed: torch.Tensor | None) -> None:
    """Give the one shard of a store other tensors, or none of a name, and the index its hash."""
    shard, index = path / "00000.safetensors", path / "index.json"
    tensors = load_file(shard) | changed
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, shard)
    entry = json.loads(index.read_text())
    entry["shards"][0]["checksum"] = checksum(shard)
    index.write_text(json.dumps(entry))


@pytest.mark.parametrize("name", ["index.json", "00000.safetensors"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    target: TargetModel, tmp_path: Path, name: str
) -> None:
    texts = samples(3)
    write_features(target, texts, config(target, texts), tmp_path / "s")
    (tmp_path / "s" / name).unlink()
    os.mkfifo(tmp_path / "s" / name)
    with pytest.raises(UserError, match=f"cannot read .*{name}: it is a named pipe"):
        FeatureStore(tmp_path / "s")


def test_a_store_of_other_tensors_is_refused_though_its_hash_is_right(
    target: TargetModel, tmp_path: Path
) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts, "pre_norm"), tmp_path / "s")
    whole = load_file(tmp_path / "s" / "00000.safetensors")
    lengths = whole["lengths"].clone()
    lengths[0], lengths[1] = lengths[0] + lengths[1] + 1, -1
    for changed in (
        {"read": None},
        {"read": whole["read"][:-1]},
        {"hidden": whole["hidden"].float()},
        {"hidden": whole["hidden"].flatten()},
        {"tokens": whole["tokens"].float()},
        {"tokens": whole["tokens"][:, None]},
        {"lengths": whole["lengths"].float()},
        {"lengths": lengths},
    ):
        forge(tmp_path / "s", **whole | changed)
        with pytest.raises(UserError, match="00000.safetensors is damaged"):
            FeatureStore(tmp_path / "s")
    forge(tmp_path / "s", **whole | {"hidden": whole["hidden"][:, :-1].contiguous()})
    with pytest.raises(UserError, match="00000.safetensors is damaged"):
        check_store(FeatureStore(tmp_path / "s"), target, RecallDraft.from_target(target))
    forge(tmp_path / "s", **whole | {"tokens": whole["tokens"].neg()})
    with pytest.raises(UserError, match=r"hold token -\d+"):
        next(Batches(FeatureStore(tmp_path / "s"), 12, 60, seed=1, vocab_size=VOCAB))


def test_training_from_a_store_is_training_with_the_target(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(30)
    rules = replace(config(target, texts), max_length=32, batch_tokens=64)
    write_features(target, texts, rules, tmp_path / "s")
    losses = []
    for name, data in (("loop", texts), ("store", FeatureStore(tmp_path / "s"))):
        torch.manual_seed(0)
        draft = RecallDraft.from_target(target)
        settings = TrainConfig(
            output=str(tmp_path / name), max_steps=4, max_length=32, batch_tokens=64, dtype="float32"
        )
        losses.append(train(settings, target, data, draft).training["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
