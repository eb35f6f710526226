"""The time that a command may use to measure. Ctrl-C ends it early."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import torch

from clover.measure.report.progress import Progress
from clover.measure.report.words import duration

# In this file Linux counts, for each processor, the ticks of user, nice, system, idle, iowait, irq, softirq, steal.
_STAT = Path("/proc/stat")
_ROUGH = 0.25  # a smaller lack of cores does not matter
_LATE = 1.05  # the report mentions a larger share of the time; below, one step or the report explains it
Thing = TypeVar("Thing")
Clock = Callable[[], float]
Enough = Callable[[], bool]  # whether work must end, even if it is not complete


def never() -> bool:
    """Return False, for work without a limit."""
    return False


class Budget:
    """A number of minutes from now on. Commands load their models in this time, but not Python's modules.

    `done` counts the finished pieces of work, and `interrupted` is True after Ctrl-C has ended the work.
    """

    def __init__(self, minutes: float, clock: Clock = time.monotonic):
        self.minutes, self.done, self.interrupted = minutes, 0, False
        self._clock, self._loaded = clock, 0.0
        self._started, self._others = clock(), OtherPrograms()

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
        """Return the used share of the time."""
        return self.used / (60 * self.minutes) if self.minutes else 1.0

    def part(self, share: float = 1.0) -> Enough:
        """Return a function that returns whether this share of the time left now has been used."""
        end = self.used + share * max(self.left, 0.0)
        return lambda: self.used >= end

    def start(self, progress: Progress) -> None:
        """Print how long the measurement may take, and whether other programs disturb it."""
        self._loaded = self.used
        progress.log(f"measuring for {duration(self.left)} at most; Ctrl-C prints what there is")
        for _, words in self.facts:
            progress.log(words)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of a report's card about a busy machine and exceeded time, if they apply."""
        words, late = self._others.words, self.used > _LATE * 60 * self.minutes
        facts = [("busy", words)] if words else []
        if late and self._loaded:
            took = f"it took {duration(self.used)}, more than --max-minutes {self.minutes:g}"
            facts.append(
                ("late", f"{took}: loading {duration(self._loaded)}, the rest is the least to measure")
            )
        return facts

    def each(self, things: Iterable[Thing]) -> Iterator[Thing]:
        """Yield the first thing, and others while a piece of work as long as the longest so far would end in time."""
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
        """End the block at Ctrl-C, without an error if at least one piece of work is finished."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.done:
                raise
            self.interrupted = True

    @property
    def why(self) -> str:
        """Return the reason why the work ended before it was complete."""
        return "Ctrl-C" if self.interrupted else f"--max-minutes {self.minutes:g}"


def growing_parts(count: int, most: int) -> Iterator[list[int]]:
    """Yield the numbers below `count` in parts of 1, 2, 4, … up to `most`.

    They are in the order of their reversed bits, so that each part is spread over the whole range.

    >>> list(growing_parts(8, 4))
    [[0], [4, 2], [6, 1, 5, 3], [7]]
    """
    width = max(count - 1, 0).bit_length()
    order = [at for n in range(2**width) if (at := int(f"{n:0{width}b}"[::-1] or "0", 2)) < count]
    sizes = accumulate(iter(lambda: 1, 0), lambda size, _: min(2 * size, most))
    while order:
        size = next(sizes)
        yield order[:size]
        order = order[size:]


class OtherPrograms:
    """The processor time that other programs use from now on, if the system reports it.

    `read` returns seconds of a clock, of all programs on this program's processors, and of this program; or None.
    """

    def __init__(self, read: Callable[[], tuple[float, float, float] | None] | None = None):
        self._read = read or _processor_times
        self._before = self._read()

    @property
    def used(self) -> float | None:
        """Return how many cores other programs used on average; None if that is unknown."""
        now = self._read()
        if self._before is None or now is None:
            return None
        elapsed, busy, own = (later - earlier for earlier, later in zip(self._before, now, strict=True))
        return max(busy - own, 0.0) / max(elapsed, 1e-9)

    @property
    def words(self) -> str | None:
        """Return a warning that other programs disturb the measurement, with advice; None if they do not."""
        used = self.used
        return (
            None if used is None else busy_words(used, len(os.sched_getaffinity(0)), torch.get_num_threads())
        )


def busy_words(others: float, cores: int, threads: int) -> str | None:
    """Return a warning that other programs use so many cores; None if a core is left for each thread.

    >>> busy_words(1.6, 2, 2)
    'other programs use 1.6 of 2 cores: numbers below are rough, --threads 1 is faster'
    >>> busy_words(1.6, 2, 1)
    'other programs use 1.6 of 2 cores: numbers below are rough'
    >>> busy_words(1.1, 8, 4)
    """
    if others + threads <= cores + _ROUGH:
        return None
    free = max(1, round(cores - others))
    advice = f", --threads {free} is faster" if free < threads else ""
    return f"other programs use {others:.1f} of {cores} cores: numbers below are rough{advice}"


def _processor_times() -> tuple[float, float, float] | None:
    """Return seconds of the clock, of all programs on this program's processors, and of this program."""
    if not _STAT.is_file():
        return None
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = [line.split() for line in _STAT.read_text(encoding="ascii").splitlines()]
    ticks = [[int(field) for field in row[1:9]] for row in rows if row and row[0] in names]
    busy = sum(sum(row) - row[3] - row[4] for row in ticks) / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy, time.process_time()
