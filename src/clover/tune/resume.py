"""Finished measurements, saved beside the output until all is done: a call that was interrupted goes on from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clover.errors import UserError
from clover.files import read_json, write_json


class Resume:
    """A file of JSON values, each under a name.

    Args:
        output: the file lies beside it, and appears with the first value.
        conditions: under which the values hold. A file saved under others, or a damaged one, is not read.
    """

    def __init__(self, output: Path, conditions: dict[str, Any]):
        self.path = output.with_name(f"{output.stem}.partial.json")
        self.conditions: dict[str, Any] = json.loads(json.dumps(conditions))  # as they are read back
        self._values: dict[str, Any] = self._read() if self.path.is_file() else {}

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """The value that was saved, or else what `measure` returns, which is saved from now on."""
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
