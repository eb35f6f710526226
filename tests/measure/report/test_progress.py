from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from clover.measure.report.progress import Progress


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120)


def written(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def wait_for_line(shown: Console) -> list[str]:
    for _ in range(6000):
        if "\n" in written(shown):
            break
        time.sleep(0.01)
    return written(shown).splitlines()


def test_a_line_comes_while_the_work_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "FIRST_LINE", 0.01)
    shown = console(terminal=False)
    with Progress(shown) as progress:
        progress.say("loading the target")
        assert wait_for_line(shown)[0] in ("starting", "loading the target")


def test_lines_tell_share_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "FIRST_LINE", 0.01)
    shown = console(terminal=False)
    progress = Progress(shown)
    progress.begin(8, done=4)
    progress.reach(6)
    progress.say("batch size 4")
    with progress:
        line = wait_for_line(shown)[0]
    assert line.startswith(" 75%  batch size 4, ") and line.endswith(" left")


def test_the_time_left_is_that_at_the_last_sign_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("clover.measure.report.progress.time.monotonic", lambda: clock[0])
    progress = Progress(console(terminal=False))
    progress.begin(600)
    shown = []
    for now, done in ((2, 2), (8, None), (400, None), (500, 600), (520, None)):
        clock[0] = now
        if done:
            progress.reach(done, "steps")
        shown.append(progress.line)
    assert shown == [f"steps, {left} left" for left in ("9:58 min", "9:52 min", "6:38 min", "0 s", "0 s")]


def test_short_work_prints_nothing_elsewhere_but_what_it_logs() -> None:
    shown = console(terminal=False)
    with Progress(shown) as progress:
        progress.begin(1)
        progress.reach(1)
        progress.log("[a] finished")
    assert written(shown) == "[a] finished\n"


def test_parts_count_by_their_share() -> None:
    progress = Progress(console(terminal=False))
    progress.begin(10)
    part = progress.part(4, "trials")
    part(0.5)
    assert progress.done == 2 and progress.line.startswith("trials, ")
    part(1.0)
    progress.part(6)(0.5)
    assert progress.done == 7
    progress.reach(100)
    assert progress.done == 10


def test_an_interrupt_takes_the_bar_away() -> None:
    shown = console(terminal=True)
    with pytest.raises(KeyboardInterrupt), Progress(shown) as progress:
        progress.begin(2)
        progress.reach(1)
        raise KeyboardInterrupt
    with Progress(shown) as progress, progress.paused(), Progress(shown) as inner:
        inner.say("a bar of its own")
    assert (
        written(shown).count("\x1b[?25l") == written(shown).count("\x1b[?25h") > 0
    )  # cursor off, and on again
