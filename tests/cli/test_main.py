import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer

import clover
from clover.cli import main
from clover.errors import UserError
from clover.target import TargetModel


@pytest.fixture
def run_failing(monkeypatch: pytest.MonkeyPatch, run_clover: Callable) -> Callable:
    """Return a function that runs a command which raises what it is given."""

    def call(error: BaseException) -> tuple[int, str, str]:
        def fail() -> None:
            raise error

        app = typer.Typer()
        app.command()(fail)
        app.callback()(lambda: None)
        monkeypatch.setattr(main, "app", app)
        return run_clover("fail")

    return call


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("no file data.jsonl;\n  give one"), "no file data.jsonl; give one"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "the disk is full; free some space and try again"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), "a.txt: no such file or directory"),
        (OSError("no model named tiny on the hub\nor here"), "no model named tiny on the hub or here"),
        (
            MemoryError(),
            "out of memory; use a smaller --batch-size or --batch-tokens, or --dtype bfloat16",
        ),
        (
            torch.OutOfMemoryError(),
            "out of memory; use a smaller --batch-size or --batch-tokens, or --dtype bfloat16",
        ),
        (typer.BadParameter("must be positive"), "Invalid value: must be positive"),
    ],
)
def test_user_errors_are_one_line(run_failing: Callable, error: Exception, message: str) -> None:
    assert run_failing(error) == (2, "", f"clover: error: {message}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_interruption_has_its_own_code(run_failing: Callable, error: BaseException) -> None:
    code, out, err = run_failing(error)
    assert (code, out, err.strip()) == (130, "", "clover: error: interrupted")


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), RuntimeError("shape"), ValueError("defect"), AssertionError()]
)
def test_defects_keep_their_traceback(run_failing: Callable, error: Exception) -> None:
    with pytest.raises(type(error)):
        run_failing(error)


def test_debug_shows_the_traceback(run_failing: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOVER_DEBUG", "1")
    with pytest.raises(UserError, match="no file"):
        run_failing(UserError("no file"))


def test_exit_codes_of_commands_pass(run_failing: Callable) -> None:
    assert run_failing(typer.Exit(3)).code == 3


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["grow"], "No such command"),
        (["--colour"], "No such option"),
        (["generate", "x", "--max-new-tokens", "many"], "max-new-tokens"),
        (["generate", "x", "--max-new-tokens", "0"], "max-new-tokens"),
        (["generate", "x", "--temperature"], "temperature"),
    ],
)
def test_usage_errors_are_one_line(run_clover: Callable, arguments: list[str], part: str) -> None:
    code, out, err = run_clover(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("clover: error: ")
    assert err.count("\n") == 1
    assert part in err


@pytest.mark.parametrize("temperature", ["1e-9", "-1", "nan", "inf"])
@pytest.mark.parametrize("command", ["generate", "chat", "evaluate", "bench", "tune", "demo", "audit"])
def test_temperatures_are_checked_before_any_work(
    run_clover: Callable, monkeypatch: pytest.MonkeyPatch, command: str, temperature: str
) -> None:
    monkeypatch.setattr(TargetModel, "load", None)
    code, out, err = run_clover(command, "--temperature", 0.5, "--temperature", temperature)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("clover: error: temperature") and "must be" in err


def test_version(run_clover: Callable) -> None:
    assert run_clover("--version") == (0, f"clover {clover.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(run_clover: Callable, arguments: list[str]) -> None:
    code, out, err = run_clover(*arguments)
    assert (code, err) == (0, "")
    assert all(command in out for command in ("generate", "chat", "train"))


def test_a_process_ends_with_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clover", "grow"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("clover: error: No such command")


@pytest.mark.parametrize(
    ("arguments", "both"), [(["--version"], False), (["--help"], False), (["--help"], True), (["grow"], True)]
)
def test_a_closed_pipe_ends_a_command_quietly(arguments: list[str], both: bool) -> None:
    """With the code of a shell; 1 would be an audit that finds a defect."""
    reader, writer = os.pipe()
    os.close(reader)
    errors = subprocess.STDOUT if both else subprocess.PIPE
    done = subprocess.run(
        [sys.executable, "-m", "clover", *arguments], stdout=writer, stderr=errors, text=True, timeout=60
    )
    os.close(writer)
    assert (done.returncode, done.stderr or "") == (141, "")


def test_a_warning_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", ["clover", "--version"])
    with pytest.raises(SystemExit):
        main.main()
    assert (
        warnings.formatwarning("no numbers", UserWarning, "loading.py", 1) == "clover: warning: no numbers\n"
    )


def test_the_cache_tells_its_place_and_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_clover: Callable
) -> None:
    monkeypatch.setenv("CLOVER_CACHE", str(tmp_path))
    kept = tmp_path / "weights" / "gguf-bfloat16-1.safetensors"
    kept.parent.mkdir()
    kept.write_bytes(bytes(10**8))
    told = run_clover("cache").out
    assert "0.1 GB  gguf-bfloat16-1\n" in told and str(tmp_path) in told and "at most 20.0 GB" in told
    assert run_clover("cache", "--clear").code == 0 and not kept.exists()
