"""Write the log of a run, one JSON object per line, and handle the signals that stop a run."""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from clover.drafts import LossConfig
from clover.files import raise_on_write_error, write_text
from clover.train.budget import TrainingBudget
from clover.train.losses import HeadMetrics


def describe_entry(entry: dict[str, Any]) -> str:
    """Return a log entry as one line: step, loss, accuracy of each head, speed."""
    accuracy = " ".join(f"{value:.2f}" for value in entry["accuracy"])
    speed = f"{entry['tokens_per_second']:,.0f} tokens/s"
    return f"step {entry['step']}  loss {entry['loss']:.3f}  accuracy {accuracy}  {speed}"


class TrainingLog:
    """The log of a run: it sums the metrics of steps, and writes them to a file of JSON lines.

    A resumed run first drops the lines that an interrupted run wrote after its checkpoint: those of later steps, and
    the last line, which is about the held-out texts.

    Args:
        path: the file.
        config: the weights of the loss.
        budget: the counts of the run; lines after its step are dropped.

    Attributes:
        entry: the last line.
    """

    def __init__(self, path: Path, config: LossConfig, budget: TrainingBudget):
        self.path, self._config, self._budget = path, config, budget
        self.entry: dict[str, Any] = {}
        self._pending: HeadMetrics | None = None
        self._logged = (budget.tokens, budget.seconds)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        write_text(path, "".join(line for line in lines if _step_of(line) <= budget.step))

    @property
    def seconds_since(self) -> float:
        """Return the seconds since the last line."""
        return self._budget.seconds - self._logged[1]

    def add(self, metrics: HeadMetrics) -> None:
        """Add the metrics of one batch, without waiting for the device."""
        self._pending = metrics if self._pending is None else self._pending + metrics

    def report(self, lr: float) -> bool:
        """Write the metrics added since the last line; return False if there are none. This waits for the device."""
        if self._pending is None:
            return False
        tokens, seconds = self._budget.tokens, self._budget.seconds
        speed = (tokens - self._logged[0]) / max(seconds - self._logged[1], 1e-9)
        self.entry = {
            "step": self._budget.step,
            "tokens": tokens,
            "seconds": round(seconds, 3),
            "lr": lr,
            "tokens_per_second": round(speed, 1),
            **self._pending.summary(self._config),
        }
        self._pending, self._logged = None, (tokens, seconds)
        if math.isfinite(self.entry["loss"]):
            self.write(self.entry)
        return True

    def write(self, entry: dict[str, Any]) -> None:
        """Append a line."""
        with raise_on_write_error(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _step_of(line: str) -> float:
    """Return the step of a line; infinity for the line about held-out texts, and for an incomplete line."""
    try:
        entry = json.loads(line)
        return math.inf if "validation" in entry else entry["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or SIGTERM was received. A second signal has its default effect."""
    received: list[int] = []
    before: dict[int, Any] = {}

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
