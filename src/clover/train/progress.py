"""What a run tells while it goes on: a progress bar, and a log of one JSON object per line."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from typing_extensions import Self

from clover.files import write_text, written

_LINE_EVERY_SECONDS = 15.0


class Reporter:
    """Shows entries on a terminal as a bar, elsewhere as a line now and then; use it as a context manager."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(stderr=True)
        columns = (TextColumn("training"), BarColumn(bar_width=20), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=self.console, transient=True)
        self._task = self._bar.add_task("starting …", total=1.0)
        self._line, self._printed = "", time.monotonic()

    def __enter__(self) -> Self:
        """Show the bar, if there is a terminal to show it on."""
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Take the bar away and leave its last line."""
        if self.console.is_terminal:
            self._bar.stop()
        self._print()

    def show(self, entry: dict[str, Any], share: float) -> None:
        """Show a log entry when `share` (0 … 1) of the budget is spent."""
        self._line = describe(entry, share)
        self._bar.update(self._task, completed=share, description=self._line)
        if not self.console.is_terminal and time.monotonic() - self._printed > _LINE_EVERY_SECONDS:
            self._print()

    def _print(self) -> None:
        if self._line:
            self.console.print(self._line, highlight=False, soft_wrap=True)
        self._line, self._printed = "", time.monotonic()


def describe(entry: dict[str, Any], share: float) -> str:
    """A log entry in one line: step, loss, accuracy of each head, speed, time left."""
    accuracy = " ".join(f"{value:.2f}" for value in entry["accuracy"])
    left = entry["seconds"] / share * (1 - share) if share else 0.0
    return (
        f"step {entry['step']}  loss {entry['loss']:.3f}  accuracy {accuracy}  "
        f"{entry['tokens_per_second']:,.0f} tokens/s  {left // 60:.0f}:{left % 60:02.0f} left"
    )


class Log:
    """A file of JSON lines. A resumed run first drops what an interrupted one wrote after its checkpoint."""

    def __init__(self, path: Path, step: int):
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        write_text(path, "".join(line for line in lines if _step_of(line) <= step))

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry."""
        with written(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")  # half a line


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C or SIGTERM has come. The second signal works as ever."""
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
