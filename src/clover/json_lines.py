"""Files of JSON lines that grow as work is done, one object after the other."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from clover.files import MAX_BYTES, read_text, validated_json, write_text, written

T = TypeVar("T")


def append_lines(path: Path, objects: Iterable[Any]) -> None:
    """Append dataclasses to a file of JSON lines, which may not be there yet, and wait until they are on the disk."""
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in objects)
            file.flush()
            os.fsync(file.fileno())


def read_lines(path: Path, kind: type[T], max_bytes: int = MAX_BYTES, mend: bool = False) -> list[T]:
    """What `append_lines` wrote, without a last line that is half-written; `mend` cuts it off the file.

    UserError names the line that is something else.
    """
    text = read_text(path, max_bytes)
    whole = text[: text.rfind("\n") + 1]
    found = [
        validated_json(kind, line, f"{path}, line {number}, which clover did not write so")
        for number, line in enumerate(whole.split("\n")[:-1], start=1)
    ]
    if mend and whole != text:
        write_text(path, whole)
    return found
