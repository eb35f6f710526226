"""The time that a command may use for measuring: kept, refined until it is used up, and ended early by Ctrl-C."""

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

# Linux counts here, for each processor, the ticks of user, nice, system, idle, iowait, irq, softirq, steal.
_STAT = Path("/proc/stat")
_ROUGH = 0.25  # cores that are missing
_LATE = 1.05  # More than this share of the time is told: less is one step, or the report.
Thing = TypeVar("Thing")
Clock = Callable[[], float]
Enough = Callable[[], bool]  # whether work has to end, however much there is still to do


def never() -> bool:
    """Return False: work without a limit."""
    return False


class Budget:
    """Minutes from now on, loading included.

    `done` counts the finished pieces of work, and `interrupted` is set once Ctrl-C has ended the work.
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
        """Return the share of the time that is used up."""
        return self.used / (60 * self.minutes) if self.minutes else 1.0

    def part(self, share: float = 1.0) -> Enough:
        """Return a function that says whether this share of the time that is left now is used up."""
        end = self.used + share * max(self.left, 0.0)
        return lambda: self.used >= end

    def start(self, progress: Progress) -> None:
        """Say how long it may take, and whether other programs disturb the measuring."""
        self._loaded = self.used
        progress.log(f"measuring for {duration(self.left)} at most; Ctrl-C prints what there is")
        for _, words in self.facts:
            progress.log(words)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of a report's card about a busy machine, and about time that could not be kept, if so."""
        words, late = self._others.words, self.used > _LATE * 60 * self.minutes
        facts = [("busy", words)] if words else []
        if late and self._loaded:
            took = f"it took {duration(self.used)}, more than --max-minutes {self.minutes:g}"
            facts.append(
                ("late", f"{took}: loading {duration(self._loaded)}, the rest is the least to measure")
            )
        return facts

    def each(self, things: Iterable[Thing]) -> Iterator[Thing]:
        """Yield things as long as the longest piece of work so far would end in time; the very first in any case."""
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


def growing_parts(count: int, most: int) -> Iterator[list[int]]:
    """Yield the numbers below `count` in parts of 1, 2, 4, … up to `most`.

    Their order is that of their reversed bits, so that each part is spread over all of them.

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
    """The processor time that other programs use from now on, where the system reports it.

    `read` returns the seconds of a clock, of all programs on this program's processors, and of this program; or None.
    """

    def __init__(self, read: Callable[[], tuple[float, float, float] | None] | None = None):
        self._read = read or _processor_times
        self._before = self._read()

    @property
    def used(self) -> float | None:
        """Return how many cores they used on the average; None where nothing is known."""
        now = self._read()
        if self._before is None or now is None:
            return None
        elapsed, busy, own = (later - earlier for earlier, later in zip(self._before, now, strict=True))
        return max(busy - own, 0.0) / max(elapsed, 1e-9)

    @property
    def words(self) -> str | None:
        """Return that they disturb the measuring, and how to do without; None if they do not."""
        used = self.used
        return (
            None if used is None else busy_words(used, len(os.sched_getaffinity(0)), torch.get_num_threads())
        )


def busy_words(others: float, cores: int, threads: int) -> str | None:
    """Return that other programs use so many cores; None where that leaves one for each thread.

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
    """Return the seconds of the clock, of all programs on this program's processors, and of this program."""
    if not _STAT.is_file():
        return None
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = [line.split() for line in _STAT.read_text(encoding="ascii").splitlines()]
    ticks = [[int(field) for field in row[1:9]] for row in rows if row and row[0] in names]
    busy = sum(sum(row) - row[3] - row[4] for row in ticks) / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy, time.process_time()
