"""Store converted weights as safetensors files in the user's cache. They are mapped, never copied.

The name of a file is a hash of its sources and of the code that made it. Its header has sums of all its bytes, so that
a damaged file is noticed and made again. It holds only numbers, in the layout that the caller expects. The files that
were not used for the longest time make room for new ones.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from clover.errors import UserError, one_line
from clover.files import output_file

_ENDING = ".safetensors"
LIMIT = 20 * 10**9  # bytes of all entries; they also leave at least as much of the disk free
SMALLEST = 2**25  # bytes; smaller weights are converted about as fast as they are read
_FORMAT = "1"  # raise it to make all entries again
_MAKERS = ("transformers", "gguf", "torch")  # packages whose versions may change the entries
_PLACE = "CLOVER_CACHE"  # the environment variable that names another directory
_ENDS = 2**20  # bytes at both ends of a file that distinguish it from others of the same size and time
_BLOCK = 2**17  # numbers of 8 bytes in one sum
# The dtypes of entries, besides bfloat16.
_NUMBERS = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8")
_NO_SUMS = "0" * 32
DTYPES = {getattr(torch, name): name[0].upper() + name.lstrip("floatuin") for name in _NUMBERS} | {
    torch.bfloat16: "BF16"
}
_FAILURES = (OSError, SafetensorError, ValueError, KeyError, RuntimeError, UserError)


class _TooLarge(UserError):
    """An error for an entry that exceeds the disk or `LIMIT`."""


def place() -> Path:
    """Return the directory of the entries; it need not exist."""
    named = os.environ.get(_PLACE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clover"
    return Path(named or cache).expanduser() / "weights"


def key(files: Iterable[Path], kind: str) -> str:
    """Return the name of the entry that is made from these files; `kind` says what is made, and in which version."""
    content = hashlib.blake2b(json.dumps([_FORMAT, kind, *map(_version, _MAKERS)]).encode(), digest_size=12)
    for path in files:
        status = path.stat()
        content.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        with path.open("rb") as file:
            content.update(file.read(_ENDS))
            file.seek(max(0, status.st_size - _ENDS))
            content.update(file.read(_ENDS))
    return f"{kind}-{content.hexdigest()}"


def find(name: str, layout: Mapping[str, Tensor] | None = None) -> dict[str, Tensor] | None:
    """Return the mapped tensors of an entry; None if it is missing, damaged, or has another layout (shapes, dtypes)."""
    path = _path(name)
    try:
        found = load_file(path)
        with safe_open(path, "pt") as file:
            sums = (file.metadata() or {}).get("sums")
        if sums != _sums(path) or (layout is not None and _shapes(found) != _shapes(layout)):
            return None
    except _FAILURES:
        return None
    with suppress(OSError):  # a cache that others filled, and that may only be read
        os.utime(path)  # the time of its last use
    return found


def find_or_make(
    name: str, layout: Mapping[str, Tensor], make: Callable[[str], Tensor], quiet: bool = False
) -> dict[str, Tensor] | None:
    """Return the mapped tensors of an entry. A missing entry is made, tensor by tensor, and may replace older ones.

    None, with the reason on stderr, if it cannot be stored. Only one process at a time makes an entry.

    Args:
        layout: tensors of the same names, shapes and dtypes, for example on the device "meta".
        make: returns the tensor of a name.
        quiet: do not report that the entry is made.
    """
    if found := find(name, layout):
        return found
    size = sum(tensor.nbytes for tensor in layout.values())
    try:
        place().mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked():
            if found := find(name, layout):  # another process has made it meanwhile
                return found
            _make_room(size)
            if not quiet:
                _tell(
                    f"converting weights once, {_gigabytes(size)}, which are kept in {place()}; {describe_limit()}"
                )
            with output_file(_path(name)) as temporary:
                _write(temporary, layout, make)
            return find(name, layout)
    except OSError as error:
        _tell(f"converted weights are not kept: {one_line(error)}")
    except UserError as error:
        if "cannot write" not in str(error) and not isinstance(error, _TooLarge):
            raise  # the error is about the weights, not the cache
        _tell(f"converted weights are not kept: {error}")
    return None


def sizes() -> dict[str, int]:
    """Return the bytes of each entry; the most recently used comes last."""
    files = dict[Path, os.stat_result]()
    for file in place().glob(f"*{_ENDING}"):
        with suppress(FileNotFoundError):  # another process may remove an entry meanwhile
            files[file] = file.stat()
    return {file.stem: files[file].st_size for file in sorted(files, key=lambda one: files[one].st_mtime)}


def clear() -> None:
    """Remove all entries, and files that killed processes left. Models that were loaded from them keep running."""
    if place().is_dir():
        with _locked():
            _remove([*place().glob(".*.partial"), *map(_path, sizes())])


def describe_limit() -> str:
    """Return a sentence with the limit, and with the options that remove or avoid entries."""
    return f"at most {_gigabytes(LIMIT)} are kept; clover cache --clear removes them, --no-weight-cache keeps none"


@contextmanager
def _locked() -> Iterator[None]:
    """Let only one process at a time change entries; the lock of a killed process is released."""
    lock = FileLock(place() / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        _tell("waiting for another process that converts weights")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make_room(size: int) -> None:
    """Remove files of killed processes, and the oldest entries until `size` bytes fit; _TooLarge if they cannot."""
    _remove(place().glob(".*.partial"))
    kept, free = sizes(), shutil.disk_usage(place()).free
    most = min(LIMIT, (free + sum(kept.values())) // 2)
    if size > most:
        raise _TooLarge(f"{_gigabytes(size)} are more than the {_gigabytes(most)} that {place()} may take")
    for name in list(kept):
        if sum(kept.values()) + size > most:
            _remove([_path(name)])
            del kept[name]


def _remove(files: Iterable[Path]) -> None:
    for file in list(files):
        file.unlink(missing_ok=True)


def _path(name: str) -> Path:
    return place() / f"{name}{_ENDING}"


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _write(path: Path, layout: Mapping[str, Tensor], make: Callable[[str], Tensor]) -> None:
    """Write a safetensors file with only one tensor in memory at a time. Its data begins at a multiple of 64 bytes."""
    header: dict[str, Any] = {"__metadata__": {"sums": _NO_SUMS}}
    end = 0
    for name, tensor in layout.items():
        start, end = end, end + tensor.nbytes
        kind, shape = DTYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with path.open("w+b") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, expected in layout.items():
            tensor = make(name)
            assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype), name
            _write_tensor(file, tensor)
        file.flush()
        file.seek(8 + text.index(_NO_SUMS.encode()))
        file.write(_sums(path).encode())


def _write_tensor(file: BinaryIO, tensor: Tensor) -> None:
    file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _sums(path: Path) -> str:
    """Return a hash of block sums of a safetensors file's data, because sums take little longer than reading."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    size = path.stat().st_size
    content = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)[start:]
    whole = content.numel() // 8 // _BLOCK * _BLOCK
    sums = content[: whole * 8].view(torch.int64).view(-1, _BLOCK).sum(1)
    hashed = hashlib.blake2b(f"{size} {start}".encode(), digest_size=16)
    hashed.update(sums.numpy().tobytes() + content[whole * 8 :].numpy().tobytes())
    return hashed.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _tell(line: str) -> None:
    print(f"clover: {line}", file=sys.stderr)
