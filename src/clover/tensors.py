"""Safetensors files that Clover wrote and reads back, with errors that name the file and say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from clover.errors import UserError, one_line
from clover.files import explain


@contextmanager
def open_tensors(path: Path, remedy: str) -> Iterator[safe_open]:
    """Open a file to read tensors from in the block; UserError if it cannot be read, with `remedy` if it is damaged."""
    try:
        path.open("rb").close()  # safetensors says "not found" of what may not be read
        with safe_open(path, "pt") as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot read {path}: {explain(error.errno)}") from error
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); {remedy}") from error
