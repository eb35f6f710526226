"""Show the progress of long work: on a terminal a bar with the time left, elsewhere a plain line from time to time."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich import progress as rich_progress
from rich.console import Console
from typing_extensions import Self

from clover.measure.report.words import duration

_LINES_EVERY = 10.0  # seconds
Thing = TypeVar("Thing")


class Progress:
    """The finished share of some work; a context manager that handles interrupts cleanly.

    Without a terminal, a thread prints a line after FIRST_LINE seconds, and then regularly.
    """

    FIRST_LINE = 3.0

    def __init__(self, console: Console | None = None):
        self.console = console or Console(stderr=True)
        self.total, self.done = 0.0, 0.0
        self._doing, self._started_at = "starting", 0.0
        self._began = self._reached = time.monotonic()
        self._stop = threading.Event()
        line = rich_progress.TextColumn("{task.fields[owner].line}", markup=False)
        columns = (rich_progress.BarColumn(bar_width=24), rich_progress.TaskProgressColumn(), line)
        self._bar = rich_progress.Progress(*columns, console=self.console, transient=True)
        self._task = self._bar.add_task("", total=None, owner=self)

    def __enter__(self) -> Self:
        """Show the bar, or start printing lines."""
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._bar.start()
        else:
            self._stop = threading.Event()
            threading.Thread(target=self._print_lines, args=(self._stop,), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the bar."""
        if self._bar.live.is_started:
            self._bar.stop()
        self._stop.set()

    def say(self, doing: str) -> None:
        """Set the name of the current work."""
        self._doing = doing

    def begin(self, total: float, done: float = 0.0) -> None:
        """Start the clock, for work of this total; an earlier run has finished `done` of it."""
        self.total, self._began, self._started_at = total, time.monotonic(), done
        self.reach(done)

    def reach(self, done: float, doing: str | None = None) -> None:
        """Set the finished amount and, unless None, the name of the current work."""
        self.done, self._reached = min(done, self.total), time.monotonic()
        self._doing = self._doing if doing is None else doing
        self._bar.update(self._task, total=self.total or None, completed=self.done)

    def each(self, things: Sequence[Thing]) -> Iterator[Thing]:
        """Yield one thing after another; each counts as finished when the next is requested."""
        self.begin(len(things))
        for done, thing in enumerate(things, 1):
            yield thing
            self.reach(done)

    def go_on(self, total: float, done: float, doing: str) -> None:
        """Call `reach`; the first call also begins the work, and counts `done` as finished by an earlier run."""
        if not self.total:
            self.begin(total, done)
        self.reach(done, doing)

    def part(self, amount: float, doing: str | None = None) -> Callable[[float], None]:
        """Begin a part of the work; return a function to call with the finished share of that part, 0 … 1."""
        start = self.done
        self.reach(start, doing)
        return lambda share: self.reach(start + share * amount)

    def log(self, line: str) -> None:
        """Print a permanent line above the bar."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Show nothing inside a ``with`` block that prints something itself."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    @property
    def line(self) -> str:
        """Return the current work and, once a part is finished, the time left at the mean speed up to the last `reach`.

        >>> progress = Progress()
        >>> progress.say("batch size 4")
        >>> progress.line
        'batch size 4'
        """
        if self.done <= self._started_at:
            return self._doing
        took, since = self._reached - self._began, time.monotonic() - self._reached
        left = took * (self.total - self.done) / (self.done - self._started_at)
        if left:
            left = max(left - since, since)  # the current piece may take as long again
        return f"{self._doing}, {duration(left)} left"

    def _print_lines(self, stop: threading.Event) -> None:
        wait, last, since = self.FIRST_LINE, "", 0.0
        while not stop.wait(wait):
            share = f"{self.done / self.total:4.0%}  " if self.total else ""
            line, now = f"{share}{self.line}", time.monotonic()
            if line == last:
                self.log(f"{line}, for {duration(now - since)} now")
            else:
                self.log(line)
                last, since = line, now - wait
            wait = _LINES_EVERY
