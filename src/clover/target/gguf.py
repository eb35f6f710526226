"""Targets in one GGUF file, as llama.cpp uses them: transformers reads and dequantises them, the tokenizer too."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from clover.errors import UserError

_MAGIC = b"GGUF"
_TURN_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


@dataclass(frozen=True)
class Source:
    """Where a target comes from: a directory or hub name, and the GGUF file in it, if that is what holds it."""

    place: str
    gguf_file: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What transformers' loaders are told beside the place."""
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}

    @property
    def path(self) -> Path:
        return Path(self.place) if self.gguf_file is None else Path(self.place, self.gguf_file)


def find_source(name_or_path: str) -> Source:
    """Tell a GGUF file, or a directory that holds one and no other model, from everything else.

    UserError if there are several, the file is of another kind, or the packages that read it are not installed.
    """
    path = Path(name_or_path)
    if path.is_file() and path.suffix == ".gguf":
        return _checked(path)
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(file for file in path.glob("*.gguf") if file.is_file())
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise UserError(f"target model {name_or_path} holds several GGUF files ({names}); name one")
        if files:
            return _checked(files[0])
    return Source(name_or_path)


def add_turn_ends(model: PreTrainedModel, path: Path) -> None:
    """Make the model stop on every token that the file calls the end of a text, a turn or a message."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    found = [int(fields[name].contents()) for name in _TURN_ENDS if name in fields]
    if found:
        assert model.generation_config is not None
        model.generation_config.eos_token_id = list(dict.fromkeys(found))


def _checked(path: Path) -> Source:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise UserError(f"target model {path} is not a GGUF file")
    if not (find_spec("gguf") and find_spec("accelerate")):
        raise UserError(f"target model {path} needs two more packages: pip install 'clover-decoding[gguf]'")
    return Source(str(path.parent), path.name)
