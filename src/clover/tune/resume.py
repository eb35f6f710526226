"""Finished measurements, saved beside the output until all is done: a call that was interrupted goes on from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clover.errors import UserError
from clover.files import read_json, write_json


class Resume:
    """A file of JSON values, each under a name.

    Args:
        output: the file lies beside it, and appears with the first value.
        conditions: under which the values hold. A file saved under others, or a damaged one, is not read.

    Attributes:
        values: that were saved.
    """

    def __init__(self, output: Path, conditions: dict[str, Any]):
        self.path = output.with_name(f"{output.stem}.partial.json")
        self.conditions: dict[str, Any] = json.loads(json.dumps(conditions))  # as they are read back
        self.values: dict[str, Any] = {}
        try:
            found = read_json(self.path)
        except UserError:  # missing or damaged
            return
        if found.get("conditions") == self.conditions and isinstance(found.get("values"), dict):
            self.values = found["values"]

    def save(self, name: str, value: Any) -> None:
        """Save one value more."""
        self.values[name] = value
        write_json(self.path, {"conditions": self.conditions, "values": self.values})

    def remove(self) -> None:
        """Remove the file, once all is done."""
        self.path.unlink(missing_ok=True)
