"""Let PyTorch's threads spin while this process has its cores to itself, and sleep when other processes need them.

A thread that waits for the other threads of a product can spin or sleep. Spinning is fastest if nothing else runs;
sleeping makes a step a quarter to a third longer. But spinning threads take cores from other processes: two processes
on two cores then decode a tenth as fast as with sleeping threads (docs/development/log.md). So no fixed choice is
right. The kernel counts how long the threads of a process waited for a core, and this module chooses by that.

PyTorch's OpenMP, libgomp, lets threads spin for milliseconds. But they sleep almost at once while the process has more
OpenMP threads than there are cores. An extra thread with idle helpers causes that for as long as it lives. With another
OpenMP, or a kernel that does not count, nothing changes.
"""

import threading
import time
from pathlib import Path

import torch

_COUNTS = Path("/proc/self/task")  # of each thread: nanoseconds run, nanoseconds waited for a core, …
# Seconds between two measurements: long enough to ignore short bursts of another process.
_EVERY = 0.5
_CONTENDED, _CALM = 0.4, 0.25  # seconds per second that all threads together waited for a core
_CALM_LOOKS = 4  # calm measurements after which threads spin again
_ENOUGH = 2**17  # a sum of so many numbers starts the helper threads


class Waiting:
    """The way in which the threads of this process wait. Any thread calls `look` between forward passes.

    Attributes:
        asleep: True while threads sleep instead of spinning.
    """

    def __init__(self) -> None:
        self.asleep = False
        self._lock, self._awake = threading.Lock(), threading.Event()
        self._looked, self._waited, self._calm = time.monotonic(), waited(), 0

    def look(self) -> None:
        """Measure if `_EVERY` seconds have passed, and choose how threads wait from now on."""
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
        """Let threads sleep after one contended measurement, and spin again after `_CALM_LOOKS` calm ones."""
        self._calm = self._calm + 1 if share < _CALM else 0
        if share > _CONTENDED and not self.asleep:
            self.asleep, self._awake = True, threading.Event()
            threading.Thread(target=_hold_helpers, args=(self._awake,), daemon=True).start()
        elif self._calm >= _CALM_LOOKS and self.asleep:
            self.asleep = False
            self._awake.set()


def waited() -> float:
    """Return the seconds that threads of this process have waited for a core; 0 if the kernel does not count."""
    nanoseconds = 0
    for counts in _COUNTS.glob("*/schedstat"):
        try:
            nanoseconds += int(counts.read_bytes().split()[1])
        except (OSError, IndexError):  # the thread has ended
            continue
    return nanoseconds / 1e9


def _hold_helpers(until: threading.Event) -> None:
    """Start OpenMP's helper threads for the calling thread, and keep them until an event."""
    torch.ones(_ENOUGH).sum()
    until.wait()


WAITING = Waiting()  # one for the process, because libgomp has one state for all threads
