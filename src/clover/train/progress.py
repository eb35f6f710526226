"""What a run leaves while it goes on: a log of one JSON object per line; and the signals that stop it."""

import json
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from clover.files import raise_on_write_error, write_text


def describe(entry: dict[str, Any]) -> str:
    """A log entry in one line: step, loss, accuracy of each head, speed."""
    accuracy = " ".join(f"{value:.2f}" for value in entry["accuracy"])
    speed = f"{entry['tokens_per_second']:,.0f} tokens/s"
    return f"step {entry['step']}  loss {entry['loss']:.3f}  accuracy {accuracy}  {speed}"


class Log:
    """A file of JSON lines. A resumed run first drops what an interrupted one wrote after its checkpoint.

    That is a line of a later step, or one of the validation, which comes last.
    """

    def __init__(self, path: Path, step: int):
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        write_text(path, "".join(line for line in lines if _learnt_until(line) <= step))

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry."""
        with raise_on_write_error(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _learnt_until(line: str) -> float:
    """The step of a line; infinity for one of the validation, or half a line."""
    try:
        entry = json.loads(line)
        return math.inf if "validation" in entry else entry["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


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
