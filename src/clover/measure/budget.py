"""The time that a command may use for measuring: kept, refined until it is used up, and ended early by Ctrl-C."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Thing = TypeVar("Thing")
Clock = Callable[[], float]


class Budget:
    """Minutes from now on, loading included.

    `done` counts the finished pieces of work, and `interrupted` is set once Ctrl-C has ended the work.
    """

    def __init__(self, minutes: float, clock: Clock = time.monotonic):
        self.minutes, self.done, self.interrupted = minutes, 0, False
        self._clock = clock
        self._started = clock()

    @property
    def used(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._started

    @property
    def left(self) -> float:
        """Return the seconds that are left; below 0 once the time is up."""
        return 60 * self.minutes - self.used

    @property
    def share(self) -> float:
        """Return the share of the time that is used up."""
        return self.used / (60 * self.minutes) if self.minutes else 1.0

    def each(self, things: Iterable[Thing]) -> Iterator[Thing]:
        """Yield the first thing, and others as long as the longest piece of work so far would end in time."""
        longest = 0.0
        for thing in things:
            if self.done and longest > self.left:
                return
            started = self._clock()
            yield thing
            longest = max(longest, self._clock() - started)
            self.done += 1

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """End the block at Ctrl-C, without an error if some piece of work is finished."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.done:
                raise
            self.interrupted = True

    @property
    def why(self) -> str:
        """Return what ended the work before all of it was done."""
        return "Ctrl-C" if self.interrupted else f"--max-minutes {self.minutes:g}"
