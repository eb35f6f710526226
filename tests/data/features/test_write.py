"""Writing hidden states to disk: whole or resumed, within the room there is, by one process at a time."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from clover.data import Sample, SampleTexts
from clover.data.features import (
    FeatureStore,
    check_store,
    has_begun,
    read_index,
    write,
    write_features,
)
from clover.drafts import RecallDraft
from clover.errors import UserError
from clover.files import LOCK, locked_directory, output_file
from clover.target import TargetModel
from tests.data.features.conftest import config, samples
from tests.families import CONTEXT, VOCAB, tiny_model


def test_who_may_read_the_index_may_read_the_states(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(3)
    write_features(target, texts, config(target, texts), tmp_path / "s")
    assert len({file.stat().st_mode & 0o777 for file in (tmp_path / "s").iterdir() if file.name != LOCK}) == 1


def test_texts_that_are_too_short_leave_no_store(target: TargetModel, tmp_path: Path) -> None:
    texts = SampleTexts([Sample(torch.tensor([1, 2]), torch.ones(2, dtype=torch.bool))])
    with pytest.raises(UserError, match="no text is long enough"):
        write_features(target, texts, config(target, texts), tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_states_that_are_no_numbers_are_not_stored(tmp_path: Path) -> None:
    model = tiny_model("llama", dtype=torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    texts = SampleTexts([Sample(torch.tensor([1, 2, 3, 7, 5]), torch.ones(5, dtype=torch.bool))])
    target = TargetModel(model)
    with pytest.raises(UserError, match=r"llama in float32 .* not finite in .* begins \[1, 2, 3, 7, 5\]"):
        write_features(target, texts, config(target, texts), tmp_path / "s")
    assert not list((tmp_path / "s").glob("*.safetensors"))


def test_an_interrupted_store_goes_on(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = samples(20)
    monkeypatch.setattr(write, "_TOGETHER", 4)
    monkeypatch.setattr(write, "_SHARD_BYTES", 1)
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
    monkeypatch.setattr(write, "_TOGETHER", 4)
    monkeypatch.setattr(write, "_SHARD_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        write_features(target, texts, config(target, texts), path, progress=stop)
    index = json.loads((path / "index.json").read_text())
    index["shards"][-1]["texts"] = 10**9
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="index.json is damaged; delete the store"):
        write_features(target, texts, config(target, texts), path, resume=True)
    assert not read_index(path).finished


def test_a_run_that_is_killed_before_there_is_an_index_is_begun_anew(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_given: object) -> None:
        shutil.copytree(tmp_path / "s", tmp_path / "left")  # for what is raised clears it away
        raise KeyboardInterrupt

    texts = samples(7)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(write, "store_bytes", killed)
        write_features(target, texts, config(target, texts), tmp_path / "s")
    assert [one.name for one in (tmp_path / "left").iterdir()] == [LOCK]
    write_features(target, texts, config(target, texts), tmp_path / "left")
    assert read_index(tmp_path / "left").finished


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
    monkeypatch.setattr(write, "_SIZE_TOGETHER", 60)
    monkeypatch.setattr(write, "_SHARD_BYTES", 1)
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
    monkeypatch.setattr(write, "_SIZE_COUNTED", counted)  # of 400 tokens
    some = Sample(torch.arange(20).int(), torch.arange(20) >= 14)
    texts, told = SampleTexts([some] * 20), list[int]()
    write_features(target, texts, config(target, texts), tmp_path / "s", on_size=told.append)
    read = FeatureStore(tmp_path / "s")
    assert read.tokens == 20 * 8  # the second of two windows
    assert told == [read.tokens * (2 * target.hidden_size + 5)]


def test_windows_are_no_longer_than_the_target_runs(target: TargetModel, tmp_path: Path) -> None:
    tokens = torch.arange(600, dtype=torch.int32) % VOCAB
    texts = SampleTexts([Sample(tokens, torch.ones(600, dtype=torch.bool))])
    write_features(target, texts, replace(config(target, texts), max_length=2048), tmp_path / "s")
    read = FeatureStore(tmp_path / "s")
    assert [read[row].size for row in range(len(read))] == [CONTEXT, CONTEXT, 600 - 2 * CONTEXT]


def test_one_process_at_a_time_writes_a_store(target: TargetModel, tmp_path: Path) -> None:
    texts = samples(7)
    with locked_directory(tmp_path / "s"), pytest.raises(UserError, match="another process works in"):
        write_features(target, texts, config(target, texts), tmp_path / "s", resume=True)

    def other(_done: int, _tokens: int) -> None:
        with pytest.raises(UserError, match="not empty"):
            write_features(target, texts, config(target, texts), tmp_path / "s")
        with pytest.raises(UserError, match="another process works in"):
            write_features(target, texts, config(target, texts), tmp_path / "s", resume=True)

    write_features(target, texts, config(target, texts), tmp_path / "s", progress=other)
    assert read_index(tmp_path / "s").finished


def test_a_store_says_whether_it_is_whole(target: TargetModel, tmp_path: Path) -> None:
    def stop(_done: int, _tokens: int) -> None:
        assert not read_index(tmp_path / "s").finished
        raise KeyboardInterrupt

    texts = samples(7)
    with pytest.raises(UserError, match="cannot read"):
        read_index(tmp_path / "s")
    with pytest.raises(KeyboardInterrupt):
        write_features(target, texts, config(target, texts), tmp_path / "s", progress=stop)
    assert has_begun(tmp_path / "s") and not read_index(tmp_path / "s").finished


def test_what_does_not_fit_is_refused(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = samples(7)
    with pytest.raises(UserError, match="nothing to resume"):
        write_features(target, texts, config(target, texts), tmp_path / "s", resume=True)
    monkeypatch.setattr(write.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"take 0.0 GB, but .* left"):
        write_features(target, texts, config(target, texts), tmp_path / "s")
    assert not list((tmp_path / "s").glob("*.safetensors"))


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
