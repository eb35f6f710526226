"""What a work directory was begun with, so that a run with other options does not go on with what it holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clover.errors import UserError
from clover.validation import read_json

BEGUN = "begun.json"


def check_begun(work: Path, here: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was noted in `work` when a run was begun there, or `here` if nothing was.

    UserError, which names the first value that differs.
    """
    noted = work / BEGUN
    begun = read_json(noted) if noted.exists() else dict(here)
    for name, value in here.items():
        if begun.get(name) != value:
            raise UserError(
                f"{work} was begun with another {name.replace('_', ' ')} ({begun.get(name)}); go on with the same "
                "options, or choose another --work"
            )
    return begun
