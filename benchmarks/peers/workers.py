"""Workers as their parent sees them: processes that are asked one at a time, and stand still in between."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.engines import ROOT, Engine
from benchmarks.peers.peer import Settings

LOADING, PREPARING, ANSWERING = 600.0, 3600.0, 900.0  # seconds that are waited for


class PeerError(Exception):
    """An engine failed; the message is one line."""


class Worker:
    """A process of an engine, in a group of its own.

    Between two questions the whole group is stopped, so that no thread of it spins while another engine is timed.

    Args:
        python: the interpreter of the engine's environment.
        module: the module to run.
        limit: seconds until it must be ready.
    """

    def __init__(self, python: Path, module: str, settings: Settings, limit: float = LOADING) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `stop`)
        self._unread = b""
        paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            [python, "-m", module, json.dumps(asdict(settings))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            start_new_session=True, env=environment,
        )  # fmt: skip
        try:
            self.ready = self._read(limit)
        except BaseException:
            self.stop()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Return the answer to a question of `benchmarks.peers.peer`; PeerError if there is none."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            return self._read(ANSWERING)
        except OSError as error:
            raise PeerError(f"it ended: {self._last_words()}") from error
        finally:
            self._signal(signal.SIGSTOP)

    def stop(self) -> None:
        """End the process and all that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        file, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._unread:
            if not select.select([file], [], [], max(end - time.monotonic(), 0))[0]:
                raise PeerError(f"no answer within {seconds:.0f} seconds")
            piece = os.read(file, 1 << 20)
            if not piece:
                raise PeerError(f"it ended: {self._last_words()}")
            self._unread += piece
        line, self._unread = self._unread.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._log.seek(max(self._log.seek(0, os.SEEK_END) - 4096, 0))
        lines = self._log.read().decode(errors="replace").split("\n")
        return next(
            (" ".join(line.split())[:300] for line in reversed(lines) if line.strip()), "without a word"
        )

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended, which the next answer tells
            os.killpg(self._process.pid, number)


@contextmanager
def running(engine: Engine, settings: Settings) -> Iterator[Worker]:
    """Make what the engine reads, then yield a worker that has loaded it, and end it; PeerError if it cannot load."""
    module = engine.module if "." in engine.module else f"benchmarks.peers.{engine.module}"
    settings = replace(settings, weights=engine.weights, method=engine.method)
    if engine.converts:
        Worker(engine.python(), module, replace(settings, prepare=True), PREPARING).stop()
    worker = Worker(engine.python(), module, settings)
    try:
        yield worker
    finally:
        worker.stop()
