"""Hidden states on disk: what is read back is what the target says, and a damaged or foreign store is refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clover.data import Batches, Sample, SampleTexts, Texts
from clover.drafts import Eagle3Draft, RecallDraft
from clover.errors import UserError
from clover.features import (
    FeatureStore,
    StoreConfig,
    check_store,
    compute_features,
    has_begun,
    is_finished,
    store,
    write_features,
)
from clover.files import LOCK, alone_in, checksum, output_file
from clover.target import TargetModel, weights_fingerprint
from clover.train import TrainConfig, train
from tests.families import CONTEXT, VOCAB, tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def samples(count: int, seed: int = 0) -> Texts:
    torch.manual_seed(seed)
    lengths = torch.randint(5, 30, (count,)).tolist()
    tokens = [torch.randint(VOCAB, (length,), dtype=torch.int32) for length in lengths]
    return SampleTexts([Sample(t, torch.arange(len(t)) > 2) for t in tokens])


def config(target: TargetModel, texts: Texts, kind: str = "post_norm") -> StoreConfig:
    return StoreConfig(weights_fingerprint(target), texts.fingerprint, target.dtype_name, kind, 12, 40)


def test_who_may_read_the_index_may_read_the_states(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(3)
    write_features(target, texts, config(target, texts), tmp_path / "s")
    assert len({file.stat().st_mode & 0o777 for file in (tmp_path / "s").iterdir() if file.name != LOCK}) == 1


def test_texts_that_are_too_short_leave_no_store(target: TargetModel, tmp_path: Path) -> None:
    texts = SampleTexts([Sample(torch.tensor([1, 2]), torch.ones(2, dtype=torch.bool))])
    with pytest.raises(UserError, match="no text is long enough"):
        write_features(target, texts, config(target, texts), tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["post_norm", "pre_norm", "low_middle_high"])
def test_states_are_those_of_the_target(target: TargetModel, tmp_path: Path, kind: str) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts, kind), tmp_path / "s")
    read = FeatureStore(tmp_path / "s")
    assert read.tokens == sum(read.load(row).size for row in range(len(read)))
    batch = next(Batches(read, 12, 60, seed=1))
    found, expected = read.features(batch, kind), compute_features(target, batch.tokens, kind)
    real = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    for a, b in ((found.hidden_input, expected.hidden_input), (found.hidden_target, expected.hidden_target)):
        torch.testing.assert_close(a[real].to(b.dtype), b[real], rtol=2**-8, atol=1e-6)
    after_norm = read.features(batch, "post_norm")
    assert torch.equal(after_norm.hidden_input, found.hidden_target)
    opening = batch.opening(4)
    torch.testing.assert_close(read.features(opening, kind).hidden_target[0], found.hidden_target[0, :4])


def test_windows_of_windows_find_their_states(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts), tmp_path / "s")
    read = FeatureStore(tmp_path / "s")
    whole = read.load(0)
    part = whole.part(3, 9).part(1, 4)
    assert part.tokens.tolist() == whole.tokens[4:7].tolist()
    assert torch.equal(
        part.shard.states(part, "post_norm")[1], whole.shard.states(whole, "post_norm")[1][4:7]
    )


def test_an_interrupted_store_goes_on(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = samples(20)
    monkeypatch.setattr(store, "_TOGETHER", 4)
    monkeypatch.setattr(store, "_SHARD_BYTES", 1)
    rules = config(target, texts)
    write_features(target, texts, rules, tmp_path / "whole")

    def stop(done: int, _tokens: int) -> None:
        if done == 12:
            raise KeyboardInterrupt

    def stop_at_once(_done: int, _tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_features(target, texts, rules, tmp_path / "cut", progress=stop)
    with pytest.raises(UserError, match="not finished"):
        FeatureStore(tmp_path / "cut")
    with pytest.raises(UserError, match="another max length"):
        write_features(target, texts, replace(rules, max_length=11), tmp_path / "cut", resume=True)
    write_features(target, texts, rules, tmp_path / "cut", resume=True)
    with pytest.raises(KeyboardInterrupt):
        write_features(target, texts, rules, tmp_path / "early", progress=stop_at_once)
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: 1)
        half = output_file(tmp_path / "early" / "00000.safetensors")
        half.__enter__().write_bytes(b"half a shard, of a process that was killed")
    write_features(target, texts, rules, tmp_path / "early", resume=True)
    assert FeatureStore(tmp_path / "early").fingerprint == FeatureStore(tmp_path / "whole").fingerprint
    assert FeatureStore(tmp_path / "cut").fingerprint == FeatureStore(tmp_path / "whole").fingerprint
    assert not list((tmp_path / "early").glob(".*"))


def test_a_store_that_claims_more_texts_than_there_are_is_not_called_finished(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, _tokens: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    texts, path = samples(8), tmp_path / "s"
    monkeypatch.setattr(store, "_TOGETHER", 4)
    monkeypatch.setattr(store, "_SHARD_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        write_features(target, texts, config(target, texts), path, progress=stop)
    index = json.loads((path / "index.json").read_text())
    index["shards"][-1]["texts"] = 10**9
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="index.json is damaged; delete the store"):
        write_features(target, texts, config(target, texts), path, resume=True)
    assert not is_finished(path)


def test_a_run_that_is_killed_before_there_is_an_index_is_begun_anew(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_given: object) -> None:
        shutil.copytree(tmp_path / "s", tmp_path / "left")  # for what is raised clears it away
        raise KeyboardInterrupt

    texts = samples(7)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(store, "store_bytes", killed)
        write_features(target, texts, config(target, texts), tmp_path / "s")
    assert [one.name for one in (tmp_path / "left").iterdir()] == [LOCK]
    write_features(target, texts, config(target, texts), tmp_path / "left")
    assert is_finished(tmp_path / "left")


def test_a_store_goes_on_in_the_dtype_it_was_begun_in(target: TargetModel, tmp_path: Path) -> None:
    def stop(_done: int, _tokens: int) -> None:
        raise KeyboardInterrupt

    texts = samples(7)
    rules, path = config(target, texts), tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        write_features(target, texts, rules, path, progress=stop)
    other = replace(rules, dtype="bfloat16")
    with pytest.raises(UserError, match=r"another dtype \(float64\)"):
        write_features(target, texts, other, path, resume=True)
    write_features(target, texts, rules, path, resume=True)
    for dtype in (torch.bfloat16, torch.float16):
        half = TargetModel(tiny_model("llama").to(dtype))
        check_store(FeatureStore(path), half, RecallDraft.from_target(half))


def test_long_texts_are_run_and_kept_a_few_at_a_time(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, shown = samples(20), list[int]()
    monkeypatch.setattr(store, "_SIZE_TOGETHER", 60)
    monkeypatch.setattr(store, "_SHARD_BYTES", 1)
    write_features(
        target, texts, config(target, texts), tmp_path / "s", progress=lambda done, _: shown.append(done)
    )
    assert shown[0] == 0 and shown[-1] == 20 and len(shown) > 5
    for start, stop in pairwise(shown):
        assert sum(one.size for one in list(texts)[start : stop - 1]) < 60
    assert len(list((tmp_path / "s").glob("*.safetensors"))) == len(shown) - 1


@pytest.mark.parametrize("counted", [2**20, 100])
def test_the_size_told_is_that_of_the_windows_that_are_kept(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: int
) -> None:
    monkeypatch.setattr(store, "_SIZE_COUNTED", counted)  # of 400 tokens
    some = Sample(torch.arange(20).int(), torch.arange(20) >= 14)
    texts, told = SampleTexts([some] * 20), list[int]()
    write_features(target, texts, config(target, texts), tmp_path / "s", tell_size=told.append)
    read = FeatureStore(tmp_path / "s")
    assert read.tokens == 20 * 8  # the second of two windows
    assert told == [read.tokens * (2 * target.hidden_size + 5)]


def test_windows_are_no_longer_than_the_target_runs(target: TargetModel, tmp_path: Path) -> None:
    tokens = torch.arange(600, dtype=torch.int32) % VOCAB
    texts = SampleTexts([Sample(tokens, torch.ones(600, dtype=torch.bool))])
    write_features(target, texts, replace(config(target, texts), max_length=2048), tmp_path / "s")
    read = FeatureStore(tmp_path / "s")
    assert [read.load(row).size for row in range(len(read))] == [CONTEXT, CONTEXT, 600 - 2 * CONTEXT]


def test_one_process_at_a_time_writes_a_store(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(7)
    with alone_in(tmp_path / "s"), pytest.raises(UserError, match="another process works in"):
        write_features(target, texts, config(target, texts), tmp_path / "s", resume=True)

    def other(_done: int, _tokens: int) -> None:
        with pytest.raises(UserError, match="not empty"):
            write_features(target, texts, config(target, texts), tmp_path / "s")
        with pytest.raises(UserError, match="another process works in"):
            write_features(target, texts, config(target, texts), tmp_path / "s", resume=True)

    write_features(target, texts, config(target, texts), tmp_path / "s", progress=other)
    assert is_finished(tmp_path / "s")


def test_a_store_says_whether_it_is_whole(target: TargetModel, tmp_path: Path) -> None:
    def stop(_done: int, _tokens: int) -> None:
        assert not is_finished(tmp_path / "s")
        raise KeyboardInterrupt

    texts = samples(7)
    with pytest.raises(UserError, match="cannot read"):
        is_finished(tmp_path / "s")
    with pytest.raises(KeyboardInterrupt):
        write_features(target, texts, config(target, texts), tmp_path / "s", progress=stop)
    assert has_begun(tmp_path / "s") and not is_finished(tmp_path / "s")


def test_what_does_not_fit_is_refused(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = samples(7)
    with pytest.raises(UserError, match="nothing to resume"):
        write_features(target, texts, config(target, texts), tmp_path / "s", resume=True)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"take 0.0 GB, but .* left"):
        write_features(target, texts, config(target, texts), tmp_path / "s")
    assert not list((tmp_path / "s").glob("*.safetensors"))


def test_an_older_store_says_that_it_must_be_written_again(target: TargetModel, tmp_path: Path) -> None:
    texts, index = samples(7), tmp_path / "s" / "index.json"
    write_features(target, texts, config(target, texts), tmp_path / "s")
    entry = json.loads(index.read_text())
    del entry["config"]["dtype"]
    index.write_text(json.dumps(entry))
    for read in (FeatureStore, is_finished):
        with pytest.raises(UserError, match="in which dtype .*; delete the store and run clover features"):
            read(tmp_path / "s")


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_store_whose_shards_are_damaged_is_not_gone_on_with(
    target: TargetModel, tmp_path: Path, damage: str
) -> None:
    texts, path = samples(7), tmp_path / "s"
    write_features(target, texts, config(target, texts), path)
    entry = json.loads((path / "index.json").read_text())
    (path / "index.json").write_text(json.dumps(entry | {"finished": False}))
    shard = path / "00000.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    if damage == "cut":
        shard.write_bytes(content[:-5])
    with pytest.raises(UserError, match="cannot read .*00000" if damage == "missing" else "is damaged"):
        write_features(target, texts, config(target, texts), path, resume=True)


def test_another_target_and_another_kind_are_refused(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(7)
    write_features(target, texts, config(target, texts), tmp_path / "s")
    read, other = FeatureStore(tmp_path / "s"), TargetModel(tiny_model("llama", seed=5))
    check_store(read, target, RecallDraft.from_target(target))
    with pytest.raises(UserError, match="another target's"):
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
