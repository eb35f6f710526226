"""Finished measurements, kept beside the output until all are done: a call that was interrupted goes on from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clover.errors import UserError
from clover.files import read_json, write_json


class Kept:
    """A file of JSON values, each under a name.

    Args:
        path: the file; it appears with the first value.
        conditions: under which the values hold. A file that was kept under others, or that is damaged, is not read.
    """

    def __init__(self, path: Path, conditions: dict[str, Any]):
        self.path, self.conditions = path, conditions
        self._values: dict[str, Any] = {}
        if path.is_file():
            self._values = self._read()

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """The value that was kept, or else what `measure` returns, which is kept from now on."""
        if name not in self._values:
            self._values[name] = measure()
            write_json(self.path, {"conditions": self.conditions, "values": self._values})
        return self._values[name]

    def remove(self) -> None:
        """Remove the file, once all is done."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            found = read_json(self.path)
        except UserError:
            return {}
        values = found.get("values")
        return values if found.get("conditions") == self.conditions and isinstance(values, dict) else {}


def kept_path(output: Path) -> Path:
    """The file beside an output.

    >>> kept_path(Path("draft/tuning.json")).as_posix()
    'draft/tuning.partial.json'
    """
    return output.with_name(f"{output.stem}.partial.json")
