"""What a run leaves while it goes on: a log of one JSON object per line; and the signals that stop it."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from clover.files import write_text, written


def describe(entry: dict[str, Any]) -> str:
    """A log entry in one line: step, loss, accuracy of each head, speed."""
    accuracy = " ".join(f"{value:.2f}" for value in entry["accuracy"])
    speed = f"{entry['tokens_per_second']:,.0f} tokens/s"
    return f"step {entry['step']}  loss {entry['loss']:.3f}  accuracy {accuracy}  {speed}"


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
