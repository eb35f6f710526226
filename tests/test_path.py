"""docs/development/path.md names the calls of a run, in their order."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import pytest

import clover
from clover.cli.main import main

PACKAGE = f"{Path(clover.__file__).parent}/"
PAGE = Path(__file__).parents[1] / "docs/development/path.md"
MOST = 30


def listed() -> list[tuple[str, str]]:
    """File and function of each row of the table; a row without a file goes on in the file above."""
    rows, file = [], ""
    for row in re.finditer(
        r"^\|[^|]*\| \d+ \| (?:`([\w/]+\.py)` )?`([\w.]+)`", PAGE.read_text(), re.MULTILINE
    ):
        file = row[1] or file
        rows.append((file, row[2].rpartition(".")[2]))
    return rows


@pytest.mark.long
def test_a_run_makes_these_calls_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls.append((frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_name))

    monkeypatch.setattr(sys, "argv", ["clover", "generate", "def area(self):", "--max-new-tokens", "24"])
    monkeypatch.setattr(sys, "stdout", sys.stderr)
    sys.setprofile(note)
    try:
        with pytest.raises(SystemExit, match="0"):
            main()
    finally:
        sys.setprofile(None)
    rows, place = listed(), 0
    assert 20 < len(rows) <= MOST
    for row in rows:
        assert row in calls[place:], f"{row} comes earlier than its place in the table, or not at all"
        place = calls.index(row, place)
