"""Let PyTorch's threads spin while this process has its cores to itself, and sleep once others want them.

A thread that waits for the others of a product can spin, which is fastest where nothing else runs, or sleep. Spinning
takes the cores from other processes: two on two cores then decode a tenth as fast as with threads that sleep, and one
alone with threads that sleep needs a quarter to a third more for a step (docs/development/log.md). So nothing fixed is
right, and this module looks: the kernel counts how long the threads of a process waited for a core.

PyTorch's OpenMP, libgomp, lets threads spin for milliseconds, but sleep almost at once while a process has more of its
threads than there are cores. A thread of our own, with idle helpers of its own, brings that about for as long as it
lives. With another OpenMP, and where the kernel does not count, nothing is changed.
"""

import threading
import time
from pathlib import Path

import torch

_COUNTS = Path("/proc/self/task")  # of each thread: nanoseconds run, nanoseconds waited for a core, …
# Seconds between two looks; a burst of another process, shorter than a tenth of it, is no contention.
_EVERY = 0.5
_CONTENDED, _CALM = 0.4, 0.25  # seconds that all threads together waited, in a second
_CALM_LOOKS = 4  # that end the sleeping
_ENOUGH = 2**17  # numbers whose sum takes several threads


class Waiting:
    """How the threads of this process wait; `look` is called between forward passes, by any thread.

    Attributes:
        asleep: True while threads sleep instead of spinning.
    """

    def __init__(self) -> None:
        self.asleep = False
        self._lock, self._awake = threading.Lock(), threading.Event()
        self._looked, self._waited, self._calm = time.monotonic(), waited(), 0

    def look(self) -> None:
        """Measure, if it is time to, and choose how threads wait from now on."""
        now = time.monotonic()
        if now < self._looked + _EVERY or not self._lock.acquire(blocking=False):
            return
        try:
            total, passed = waited(), now - self._looked
            share, self._looked, self._waited = (total - self._waited) / passed, now, total
            self.choose(share)
        finally:
            self._lock.release()

    def choose(self, share: float) -> None:
        """Sleep from the first contended look on, and spin again after `_CALM_LOOKS` calm ones."""
        self._calm = self._calm + 1 if share < _CALM else 0
        if share > _CONTENDED and not self.asleep:
            self.asleep, self._awake = True, threading.Event()
            threading.Thread(target=_hold_helpers, args=(self._awake,), daemon=True).start()
        elif self._calm >= _CALM_LOOKS and self.asleep:
            self.asleep = False
            self._awake.set()


def waited() -> float:
    """Return for how many seconds threads of this process have waited for a core; 0 where the kernel does not count."""
    nanoseconds = 0
    for counts in _COUNTS.glob("*/schedstat"):
        try:
            nanoseconds += int(counts.read_bytes().split()[1])
        except (OSError, IndexError):  # a thread that ended
            continue
    return nanoseconds / 1e9


def _hold_helpers(until: threading.Event) -> None:
    """Be a thread with helpers, as each that computes has, until an event."""
    torch.ones(_ENOUGH).sum()
    until.wait()


WAITING = Waiting()  # how this process waits: libgomp, too, has one state for all threads
