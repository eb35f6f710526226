"""Read safetensors files that Clover wrote, with errors that name the file and say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from clover.errors import UserError, one_line
from clover.files import open_to_read


@contextmanager
def open_tensors(path: Path, remedy: str) -> Iterator[safe_open]:
    """Open a file to read tensors from in the block; UserError if it cannot be read, with `remedy` if it is damaged."""
    try:
        # safetensors reports a file without read permission as "not found", and waits for pipes.
        with open_to_read(path), safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); {remedy}") from error
