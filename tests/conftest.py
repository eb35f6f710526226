"""What every test shares: one thread, no network, and a way to call the command line."""

import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", COLUMNS="120")
os.environ.setdefault("MPLBACKEND", "agg")

import atexit
import gc
import shutil
import socket
import tempfile
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import pytest
import torch

os.environ["CLOVER_CACHE"] = tempfile.mkdtemp()  # the user's own stays as it is
atexit.register(shutil.rmtree, os.environ["CLOVER_CACHE"], ignore_errors=True)

THREADS = 1  # tiny models gain nothing from more, and lose much where the cores are busy


class Finished(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(THREADS)
    if config.getoption("dist", "no") == "load":  # `-n` alone
        config.option.dist = "worksteal"  # Tests of a file, which share models, stay together.


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the modules and the tests, which stay: it would look at a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test that reaches for the network fail instead of hang or pass by luck."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if self.family != socket.AF_UNIX and not _is_local(address):
            refuse(address)
        connect(self, address)  # type: ignore[arg-type]

    def refuse(address: object) -> NoReturn:
        raise AssertionError(f"a test tried to reach {address}")

    monkeypatch.setattr(socket.socket, "connect", guarded)


def _is_local(address: object) -> bool:
    return isinstance(address, tuple) and address[0] in {"127.0.0.1", "::1", "localhost"}


@pytest.fixture
def run_clover(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Finished]:
    """Return a function that runs ``clover`` with the arguments it is given, in this process.

    However busy the machine is, no line of progress comes between.
    """
    from clover.cli.main import run
    from clover.measure.report.progress import Progress

    monkeypatch.setattr(Progress, "FIRST_LINE", 600.0)

    def call(*arguments: object) -> Finished:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return call
