"""How far an evaluation has come: a bar with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from typing_extensions import Self

_LINE_EVERY_SECONDS = 15.0


class EvaluationProgress:
    """Counts tokens of work done, of a total that is known beforehand; use it as a context manager.

    Time left is reckoned from the mean speed so far.
    """

    def __init__(self, console: Console):
        self.console, self.total, self.done = console, 0, 0
        columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("loading target and draft", total=None)
        self._doing, self._started, self._printed = "", 0.0, time.monotonic()

    def __enter__(self) -> Self:
        """Show the bar, if there is a terminal to show it on."""
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Take the bar away."""
        if self.console.is_terminal:
            self._bar.stop()

    def begin(self, total: int) -> None:
        """Start the clock, with so many tokens to do."""
        self.total, self._started = max(total, 1), time.monotonic()
        self._bar.update(self._task, total=self.total)

    def say(self, doing: str) -> None:
        """Tell what is being done from now on."""
        self._doing = doing
        self.advance(0)

    def advance(self, tokens: int) -> None:
        """Count so many tokens of work as done."""
        self.done = min(self.done + tokens, self.total)
        self._bar.update(self._task, completed=self.done, description=self.describe())
        if not self.console.is_terminal and time.monotonic() - self._printed > _LINE_EVERY_SECONDS:
            self._printed = time.monotonic()
            line = f"{self.done / max(self.total, 1):.0%}  {self.describe()}"
            self.console.print(line, highlight=False, soft_wrap=True)

    def describe(self) -> str:
        """What is being done, and the time left once some is done."""
        if not self.done:
            return self._doing
        left = (time.monotonic() - self._started) * (self.total - self.done) / self.done
        return f"{self._doing}, {left // 60:.0f}:{left % 60:02.0f} left"
