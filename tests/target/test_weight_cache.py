"""Converted weights are kept whole, found again as they were, and made again where a file is not what was written."""

import ctypes
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from clover.cpu import apply, int8
from clover.cpu.mapped import bytes_in_memory
from clover.errors import UserError
from clover.target import TargetModel, calibration, converted, weight_cache
from tests.families import tiny_model
from tests.target.test_gguf import write_gguf

ROLLUP = Path("/proc/self/smaps_rollup")
on_linux = pytest.mark.skipif(not ROLLUP.is_file(), reason="only Linux tells what is mapped")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


def weights() -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(0)
    return {
        "wide": torch.randn(700, 800, dtype=torch.bfloat16, generator=noise),
        "whole": torch.randint(-9, 9, (3, 5), dtype=torch.int8, generator=noise),
        "one": torch.randn(7, generator=noise),
    }


def make(name: str = "entry", made: list[str] | None = None) -> dict[str, Tensor]:
    def get(one: str) -> Tensor:
        if made is not None:
            made.append(one)
        return weights()[one]

    found = weight_cache.find_or_make(name, weights(), get)
    assert found is not None
    for one, tensor in weights().items():
        assert found[one].dtype == tensor.dtype and found[one].equal(tensor)
    return found


def test_an_entry_is_made_once_and_mapped(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[str] = []
    assert weight_cache.find("entry") is None
    make(made=made)
    assert str(place) in (told := capsys.readouterr().err) and "at most 20.0 GB" in told
    found = make(made=made)
    assert made == list(weights()) and capsys.readouterr().err == ""
    if ROLLUP.is_file():
        assert bytes_in_memory(found.values()) == 0
    assert (place.stat().st_mode & 0o777) == 0o700
    assert list(weight_cache.sizes()) == ["entry"] and not list(place.glob(".*.partial"))
    weight_cache.clear()
    assert not weight_cache.sizes() and weight_cache.find("entry") is None
    assert found["wide"].equal(weights()["wide"])  # what is in use stays


@pytest.mark.parametrize("place_of_damage", [-1, 300, 400_000])
def test_a_damaged_file_is_made_again(place: Path, place_of_damage: int) -> None:
    make()
    file, made = place / "entry.safetensors", list[str]()
    content = bytearray(file.read_bytes())
    content[place_of_damage] ^= 1
    file.write_bytes(content)
    make(made=made)
    assert made == list(weights())
    for wrong in (content[:-5000], b"", b"\xff" * 1000, (2**40).to_bytes(8, "little") + b"{}"):
        file.write_bytes(wrong)
        assert weight_cache.find("entry") is None
    make()


def test_a_file_of_another_layout_is_made_again() -> None:
    make()
    other = {"wide": torch.zeros(700, 801, dtype=torch.bfloat16)}
    found = weight_cache.find_or_make("entry", other, lambda name: other[name])
    assert found is not None and found.keys() == other.keys()
    assert weight_cache.find("entry", weights()) is None


def test_an_entry_that_may_only_be_read_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make(made=made)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("clover.target.weight_cache.os.utime", refuse)
    make(made=made)
    assert made == list(weights())


def test_the_entries_that_were_not_used_for_longest_go(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in ((300, "first"), (200, "second"), (100, "third")):
        make(name)
        file = place / f"{name}.safetensors"
        os.utime(file, (file.stat().st_mtime - age,) * 2)
    make("first")  # used, and no longer the oldest
    (place / ".other.1.partial").write_bytes(b"left by a killed process")
    size = sum(tensor.nbytes for tensor in weights().values())
    monkeypatch.setattr(weight_cache, "LIMIT", 3 * size + 5000)
    make("fourth")
    assert list(weight_cache.sizes()) == ["third", "first", "fourth"]
    assert not (place / ".other.1.partial").exists()


def test_an_entry_that_another_process_removes_is_not_listed(place: Path) -> None:
    make()
    (place / "removed.safetensors").symlink_to(place / "nothing")  # listed, but gone when it is looked at
    assert list(weight_cache.sizes()) == ["entry"]


def test_what_cannot_be_kept_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weight_cache, "LIMIT", 1000)
    assert weight_cache.find_or_make("entry", weights(), lambda name: weights()[name]) is None
    assert "more than" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOVER_CACHE", str(tmp_path / "file"))
    assert weight_cache.find_or_make("entry", weights(), lambda name: weights()[name]) is None
    assert "are not kept" in capsys.readouterr().err


def test_a_failed_making_leaves_nothing(place: Path) -> None:
    def fail(name: str) -> Tensor:
        raise UserError("a tensor cannot be read")

    with pytest.raises(UserError, match="a tensor cannot be read"):
        weight_cache.find_or_make("entry", weights(), fail)
    assert [file.name for file in place.iterdir()] == [".lock"]


_WRITER = """
import time
from clover.target import weight_cache
from tests.target.test_weight_cache import weights

def get(name):
    if name != "wide":
        print("half written", flush=True)
        time.sleep(600)
    return weights()[name]

weight_cache.find_or_make("entry", weights(), get)
"""


@pytest.mark.long
def test_an_entry_whose_maker_is_killed_is_made_again(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITER], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"half written\n"
        writer.kill()
    assert list(place.glob(".*.partial")) and not weight_cache.sizes()
    made: list[str] = []
    make(made=made)  # the lock is free again
    assert made == list(weights()) and list(weight_cache.sizes()) == ["entry"]
    assert not list(place.glob(".*.partial"))


@pytest.mark.skipif("fork" not in get_all_start_methods(), reason="no processes that share this module")
def test_one_of_two_processes_makes_and_the_other_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = get_context("fork")
    making, waiting, may_end, found = forks.Event(), forks.Event(), forks.Event(), forks.SimpleQueue()
    monkeypatch.setattr(weight_cache, "_tell", lambda line: "waiting" in line and waiting.set())

    class Slow(list[str]):
        def append(self, name: str) -> None:
            making.set()
            assert may_end.wait(60)
            super().append(name)

    def run() -> None:
        made = Slow()
        make(made=made)
        found.put(list(made))

    first, second = forks.Process(target=run), forks.Process(target=run)
    first.start()
    assert making.wait(60)
    second.start()
    assert waiting.wait(60) and not weight_cache.sizes()
    may_end.set()
    for process in (first, second):
        process.join(60)
        assert process.exitcode == 0
    assert [found.get(), found.get()] == [list(weights()), []]
    assert list(weight_cache.sizes()) == ["entry"]


def test_keys_tell_files_and_kinds_apart(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"x" * 100)
    other.write_bytes(b"x" * 99 + b"y")
    os.utime(other, (one.stat().st_atime, one.stat().st_mtime))
    keys = {weight_cache.key(files, kind) for files in ([one], [other]) for kind in ("a", "b")}
    assert len(keys) == 4 and weight_cache.key([one], "a") in keys


def test_a_gguf_file_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "SMALLEST", 0)
    path = tmp_path / "model.gguf"
    write_gguf(tiny_model("llama", torch.float32), path)
    plain, tokens = TargetModel.load(path, weight_cache=False), torch.arange(5)[None]
    assert not weight_cache.sizes()
    for _ in range(2):
        kept = TargetModel.load(path)
        assert len(weight_cache.sizes()) == 1
        assert kept.model(tokens).logits.equal(plain.model(tokens).logits)
        assert (
            kept.eos_token_ids == plain.eos_token_ids and kept.described_config() == plain.described_config()
        )


@pytest.mark.parametrize("shards", [1, 2])
def test_widened_weights_are_read_from_the_cache(
    shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converted, "MAX_SECOND_COPY", 0)
    model = tiny_model("llama", torch.bfloat16)
    model.generation_config.eos_token_id = [3, 4]
    model.save_pretrained(tmp_path / "model", max_shard_size="5GB" if shards == 1 else "20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) >= shards
    plain, tokens = TargetModel.load(tmp_path / "model", weight_cache=False), torch.arange(5)[None]
    for _ in range(2):
        kept = TargetModel.load(tmp_path / "model")
        assert kept.model(tokens).logits.equal(plain.model(tokens).logits)
        assert (
            kept.eos_token_ids == plain.eos_token_ids and kept.described_config() == plain.described_config()
        )
    assert len(weight_cache.sizes()) == 1
    TargetModel.load(tmp_path / "model", dtype="bfloat16")  # mapped as it is
    assert len(weight_cache.sizes()) == 1


def anonymous() -> int:
    """Return the bytes of memory that this process has beyond the files that it maps."""
    line = next(line for line in ROLLUP.read_text().splitlines() if line.startswith("Anonymous"))
    return 1024 * int(line.split()[1])


@contextmanager
def watched() -> Iterator[list[int]]:
    """Collect `anonymous` before, during and after the block. Free memory is returned first: its reuse counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found, ended = [anonymous()], Event()

    def watch() -> None:
        while not ended.wait(0.005):
            found.append(anonymous())

    (thread := Thread(target=watch)).start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        found.append(anonymous())


def save_large(directory: Path) -> None:
    """Save a model of 109 M weights in bfloat16."""
    config = LlamaConfig(vocab_size=4000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to(torch.bfloat16).to_empty(device="cpu")
    for weight in model.parameters():
        weight.detach().fill_(0.01)
    model.save_pretrained(directory)


@on_linux
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_target_takes_its_weights_once(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With packed weights; in float32 those of a bfloat16 file, which are widened."""
    for module in (apply, converted):
        monkeypatch.setattr(module, "MAX_SECOND_COPY", 0)
    save_large(tmp_path)
    with watched() as found:
        target = TargetModel.load(tmp_path, dtype=dtype)
    taken = max(found) - found[0]
    size = sum(weight.nbytes for weight in target.model.parameters())
    assert taken <= 1.15 * size and bytes_in_memory(target.model.parameters()) <= size // 100


def test_large_weights_that_are_not_packed_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "MAX_SECOND_COPY", 0)
    tiny_model("llama", torch.bfloat16).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="not in mapped files, so they are not packed"):
        TargetModel.load(tmp_path, "float32", weight_cache=False)
    monkeypatch.setattr(apply, "bytes_in_memory", lambda _: 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TargetModel.load(tmp_path, "float32", weight_cache=False)


def fine(target: TargetModel) -> list[bool]:
    assert target.copied is not None
    return [one.product.fine for one in target.copied.products]


@pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")
@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_int8_weights_and_their_calibration_are_kept(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(weight_cache, "SMALLEST", 0)
    path, model = tmp_path / "model", tiny_model("llama", torch.float32)
    model.save_pretrained(path) if form == "directory" else write_gguf(model, path := tmp_path / "model.gguf")
    plain = TargetModel.load(path, weights="int8", weight_cache=False)
    assert not weight_cache.sizes()
    tokens = torch.arange(5)[None]

    def is_right(target: TargetModel) -> bool:
        with torch.no_grad():
            found, expected = (one.logits(one.train_forward(tokens).hidden) for one in (target, plain))
        return torch.equal(found, expected) and fine(target) == fine(plain)

    capsys.readouterr()
    assert is_right(TargetModel.load(path, weights="int8"))
    assert capsys.readouterr().err.count("converting weights once") == (1 if form == "directory" else 2)
    kept = {name.split("-")[0] for name in weight_cache.sizes()} - {"gguf"}
    assert kept == {"int8", "calibration"}
    names = list(weight_cache.sizes())
    with monkeypatch.context() as patched:  # nothing is rounded or calibrated again
        patched.setattr(int8, "_rounded", None)
        patched.setattr(calibration, "refine", None)
        assert is_right(TargetModel.load(path, weights="int8"))
    assert sorted(weight_cache.sizes()) == sorted(names)
    for name in names:  # a damaged entry is made again
        file = weight_cache.place() / f"{name}.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    assert is_right(TargetModel.load(path, weights="int8"))
    TargetModel.load(path, "float32", weights="int8")
    assert len(weight_cache.sizes()) > len(names)  # of another dtype


@pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")
def test_what_calibration_found_is_kept_for_what_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_cache, "SMALLEST", 0)
    tiny_model("llama", torch.float32).save_pretrained(tmp_path)

    def entries() -> set[str]:
        TargetModel.load(tmp_path, weights="int8")
        return set(weight_cache.sizes())

    first = entries()
    assert entries() == first
    for place, value in ((calibration, "_VERSION"), (calibration, "THRESHOLDS"), (calibration, "_MOST")):
        before = entries()
        monkeypatch.setattr(place, value, getattr(place, value) * 2)
        assert len(entries() - before) == 1, value
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    assert len(entries() - before) == 2
