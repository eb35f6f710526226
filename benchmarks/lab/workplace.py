"""Where the stages hand over, and what every result says about itself."""

from __future__ import annotations

import datetime
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.lab.sizes import Sizes
from clover.files import raise_on_write_error
from clover.measure.report.provenance import machine, revision, versions


class OutOfTime(Exception):
    """The call's time is up; the same command goes on from here."""


@dataclass(frozen=True)
class Workplace:
    """What every stage is given.

    Args:
        folder: results are in `results/` in it.
        sizes: of everything.
        device, dtype: on which and in which everything decodes.
        deadline: of this call, as `time.monotonic()` counts.
        compiled: time the shapes with torch.compile, too.
    """

    folder: Path
    sizes: Sizes
    device: torch.device
    dtype: torch.dtype
    deadline: float
    compiled: bool = False

    @property
    def dtype_name(self) -> str:
        """As the command line has it."""
        return str(self.dtype).removeprefix("torch.")

    def result(self, name: str) -> Path:
        """Return the file of a result."""
        return self.folder / "results" / name

    def check_time(self, needed: float = 0.0) -> None:
        """Raise OutOfTime if there are not so many seconds left."""
        if time.monotonic() + needed > self.deadline:
            raise OutOfTime

    def origin(self) -> dict[str, Any]:
        """Date, device, command, revision and versions of a result."""
        return {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "device": self.device.type,
            "machine": machine(self.device),
            "dtype": self.dtype_name,
            "command": " ".join([Path(sys.argv[0]).name, *map(_short, sys.argv[1:])]),
            "revision": revision(),
            "versions": versions(),
        }

    def say(self, text: str) -> None:
        """Tell how far it is."""
        left = max(0.0, self.deadline - time.monotonic())
        print(f"[{left:4.0f} s left] {text}", file=sys.stderr, flush=True)

    def add_line(self, name: str, line: dict[str, Any]) -> None:
        """Append a JSON line to a result file, with its origin."""
        path = self.result(name)
        with raise_on_write_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line | {"origin": self.origin()}, ensure_ascii=False) + "\n")

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the JSON lines of a result file; none where there is no file."""
        path = self.result(name)
        return (
            [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if path.exists()
            else []
        )


def _short(word: str) -> str:
    """Paths by their last name only."""
    return Path(word).name if word.startswith("/") else word
