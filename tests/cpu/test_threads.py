"""Threads sleep while other processes want the cores, and only then."""

import threading
import time
from pathlib import Path

import pytest

from clover.cpu.threads import _CALM_LOOKS, Waiting, waited


def helpers() -> int:
    return sum(thread.name.endswith("(_hold_helpers)") for thread in threading.enumerate())


def test_threads_sleep_while_the_cores_are_contended() -> None:
    waiting, before = Waiting(), helpers()
    for share in (0.0, 0.3, 0.0):
        waiting.choose(share)
        assert not waiting.asleep and helpers() == before
    for share in (1.0, 0.9, *[0.0] * (_CALM_LOOKS - 1), 0.3, *[0.0] * (_CALM_LOOKS - 1)):
        waiting.choose(share)
        assert waiting.asleep and helpers() == before + 1
    waiting.choose(0.0)
    assert not waiting.asleep
    end = time.monotonic() + 20
    while helpers() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert helpers() == before


def test_a_look_measures_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, now, count = list[float](), [100.0], [5.0]
    monkeypatch.setattr("clover.cpu.threads.time.monotonic", lambda: now[0])
    monkeypatch.setattr("clover.cpu.threads.waited", lambda: count[0])
    waiting = Waiting()
    monkeypatch.setattr(waiting, "choose", shares.append)
    for passed, more in ((0.01, 1.0), (0.49, 0.0), (0.1, 1.0), (1.9, 0.0)):
        now[0] += passed
        count[0] += more
        waiting.look()
    assert shares == pytest.approx([2.0, 0.5])


@pytest.mark.skipif(not Path("/proc/self/schedstat").is_file(), reason="this kernel does not count")
def test_the_kernel_counts() -> None:
    assert 0 < waited() < time.monotonic() * 1000
