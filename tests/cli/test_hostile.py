"""Hostile inputs to every command that reads files: exit code 2, one line on stderr, nothing on stdout."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clover.target import TargetModel

DEEP = b"[" * 100_000
FILES: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t\n",
    "binary": bytes(range(256)) * 8,
    "truncated": b'{"messages": [{"role": "user"',
    "wrong": b'{"text": 5, "prompts": {"a": [1]}, "format": [], "prompt": true}\n',
    "number": b"5\n",
    "deep": DEEP,
    "surrogate": b'{"text": "\\ud800", "prompts": ["\\udfff"]}\n',
    "huge": b'{"text": "' + b"x" * (17 * 2**20) + b'"}\n',
}
KINDS = [*FILES, "missing", "directory", "loop", "unreadable"]
COMMANDS = {
    "train": ["train", "--data", "FILE.jsonl", "--output", "OUT"],
    "train json": ["train", "--data", "FILE.json", "--output", "OUT"],
    "train parquet": ["train", "--data", "FILE.parquet", "--output", "OUT"],
    "evaluate": ["evaluate", "FILE.jsonl"],
    "tune": ["tune", "FILE.json"],
    "audit": ["audit", "--tree", "lookup", "--prompts", "FILE.json"],
    "demo": ["demo", "--prompts", "FILE.json"],
    "bench": ["bench", "--prompts", "FILE.json"],
    "write": ["write", "--prompts", "FILE.jsonl", "--output", "OUT.jsonl"],
    "tree": ["generate", "x", "--tree", "FILE.json"],
}


@pytest.fixture
def quick_target(tiny_target: Path, monkeypatch: pytest.MonkeyPatch, loaded: dict[str, TargetModel]) -> Path:
    """The tiny target, which all commands share once it is loaded."""
    load = TargetModel.load.__func__  # type: ignore[attr-defined]

    def once(cls: type, name: str, *args: object, **options: object) -> TargetModel:
        if name != str(tiny_target):
            return load(cls, name, *args, **options)
        if name not in loaded:
            loaded[name] = load(cls, name)
        return loaded[name]

    monkeypatch.setattr(TargetModel, "load", classmethod(once))
    return tiny_target


@pytest.fixture(scope="module")
def loaded() -> dict[str, TargetModel]:
    return {}


def make(directory: Path, name: str, kind: str) -> Path:
    path = directory / name
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "unreadable":
        path.write_bytes(b"{}")
        path.chmod(0)
    elif kind != "missing":
        path.write_bytes(FILES[kind])
    return path


def assert_refused(finished: tuple[int, str, str]) -> None:
    code, out, err = finished
    assert (code, out) == (2, "")
    assert err.startswith("clover: error: ") and err.count("\n") == 1, err
    assert len(err) < 1500


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_files(run_clover: Callable, quick_target: Path, tmp_path: Path, command: str, kind: str) -> None:
    if kind == "unreadable" and os.access("/root", os.W_OK):
        pytest.skip("the superuser may read anything")
    arguments = []
    for argument in COMMANDS[command]:
        stem, _, suffix = argument.partition(".")
        if stem == "FILE":
            argument = str(make(tmp_path, f"file.{suffix}", kind))
        arguments.append(str(tmp_path / "out") if argument == "OUT" else argument)
    assert_refused(run_clover(*arguments, "--target", quick_target))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [*FILES, "directory", "loop"])
@pytest.mark.parametrize("option", ["--target", "--draft"])
def test_models(run_clover: Callable, quick_target: Path, tmp_path: Path, option: str, kind: str) -> None:
    (tmp_path / "model").mkdir()
    make(tmp_path / "model", "config.json", kind)
    others = ["--tree", "plain"] if option == "--target" else ["--target", quick_target]
    finished = run_clover("generate", "x", option, tmp_path / "model", *others)
    assert_refused(finished)
    assert "model" in finished.err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10_000_000),
        ("vocab_size", 10**12),
        ("num_attention_heads", 10**9),
        ("n_layer", 2**70),
        ("hidden_size", 10**400),
    ],
)
def test_targets_of_absurd_size(run_clover: Callable, tmp_path: Path, field: str, value: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", field: value}))
    finished = run_clover("generate", "x", "--tree", "plain", "--target", tmp_path)
    assert_refused(finished)
    assert field in finished.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "half \ud800 a character"],
        ["generate", "x", "--prompt-file", "/tmp/\udcff"],
        ["train", "--data", "x.jsonl", "--output", "/tmp/\udcff"],
        ["generate", "x", "--seed", str(2**70)],
        ["train", "--data", "x.jsonl", "--output", "out", "--seed", str(-(2**70))],
        ["recipe", "smollm2", "--texts", "2", "--output", "out", "--seed", str(2**70)],
        ["train", "--data", "x.jsonl", "--output", "out", "--set", "embedding_scale=abc"],
        ["train", "--data", "x.jsonl", "--output", "out", "--set", "num_heads=" + "[" * 100_000],
        ["train", "--data", "x.jsonl", "--output", "out", "--heads", str(10**9)],
        ["train", "--data", "x.jsonl", "--output", "out", "--lr", "nan"],
        ["train", "--data", "x.jsonl", "--output", "out", "--lr", "1e300"],
    ],
)
def test_arguments(run_clover: Callable, quick_target: Path, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "some text that is long enough"}\n' * 3)
    placed = [str(tmp_path / a) if a in ("x.jsonl", "out") else a for a in arguments]
    assert_refused(run_clover(*placed, "--target", quick_target))


def test_chat_with_bytes_that_are_no_text(
    run_clover: Callable, quick_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello \xff\xfe\n"), encoding="utf-8"))
    assert_refused(run_clover("chat", "--target", quick_target))
