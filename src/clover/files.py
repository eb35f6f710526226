"""Write files whole or not at all; read text and JSON of bounded size, and check it, with errors that name the file."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field, fields
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from filelock import FileLock, Timeout
from typing_extensions import dataclass_transform

from clover.errors import UserError, one_line

T = TypeVar("T")
LOCK = ".lock"  # in a directory that a process works in
_PARTIAL = ".*.partial"  # names of what is being written
MAX_BYTES = 16 * 2**20  # of a file that is read as a whole, unless the caller says otherwise

_EXPLAINED = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


@contextmanager
def output_directory(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary directory beside `path`, which takes that name if the block succeeds.

    With `overwrite`, files that `path` holds stay until the new ones are whole. A link to a directory stays, and the
    directory is written. UserError as `check_output_directory` says, or if the directory cannot be written.
    """
    final = _behind_link(path)
    check_output_directory(final, overwrite)
    temporary = _hidden_beside(final, "partial")
    with written(final):
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed process that had this one's number
        temporary.mkdir(parents=True)
    try:
        with written(final, _DISK):
            yield temporary
        with written(final):
            check_output_directory(final, overwrite)
            _share(temporary)
            _replace_directory(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _share(folder: Path) -> None:
    """Let others read what the umask lets them read: safetensors 0.8 writes files for their owner alone."""
    mode = folder.stat().st_mode & 0o666
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)


@contextmanager
def output_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file beside `path`, empty at first, which takes that name if the block succeeds.

    Of a link it is the file behind it that is written. UserError for what is no file, such as a device.
    """
    final = Path(os.path.realpath(path))
    _check_regular(final)
    temporary = _hidden_beside(final, "partial")
    with written(final):
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)  # of a killed process that had this one's number
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode & 0o666
            yield temporary
            temporary.chmod(mode)  # as in `_share`
            os.replace(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)


def check_output_directory(path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Say before the work what `output_directory` would say after it.

    UserError if `path` is a file, a mount point or the current directory or above it, stands where nothing can be
    written, or holds files and `overwrite` is off; what a killed process leaves is not counted.
    """
    path = _behind_link(path)
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError("the current directory cannot be replaced; choose another directory")
    if os.path.ismount(path):
        raise UserError(f"{path} is a mount point, which cannot be replaced; choose a directory in it")
    if not path.is_dir():
        if path.exists() or path.is_symlink():
            raise UserError(f"{path} exists and is not a directory; choose another name")
    elif not overwrite and any(one.name != LOCK and not one.match(_PARTIAL) for one in path.iterdir()):
        raise UserError(f"{path} already exists and is not empty; choose another directory or overwrite it")
    parent = next(one for one in path.parents if one.exists())
    if not parent.is_dir():
        raise UserError(f"cannot write {path}: {parent} is not a directory")
    if not os.access(parent, os.W_OK):
        raise UserError(f"cannot write {path}: permission denied")


def _behind_link(path: str | os.PathLike[str]) -> Path:
    return Path(path).resolve() if Path(path).is_dir() else Path(os.path.abspath(path))


def beside(path: Path, ending: str) -> Path:
    """The path whose name has `ending` behind it, also where `path` is "." or ends with ".."."""
    named = path if path.name not in ("", "..") else Path(os.path.abspath(path))
    return named.with_name(named.name + ending)


def check_output_file(path: Path) -> None:
    """Make the file's directory; UserError if `path` is a directory, or cannot be written."""
    if path.is_dir():
        raise UserError(f"{path} is a directory; give the name of a file")
    _check_regular(path)
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write {path}: permission denied")


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is a device or a pipe, which cannot be replaced; give the name of a file")


@contextmanager
def work_directory(path: Path) -> Iterator[None]:
    """Make a directory that the stages of a run share, and hold it; UserError while another process works in it.

    What killed processes have left half-written in it is removed.
    """
    with written(path):
        path.mkdir(parents=True, exist_ok=True)
    with _held(path / LOCK, f"another process works in {path}; wait for it, or choose another directory"):
        for left in path.glob(_PARTIAL):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        yield


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """`work_directory`, which goes away again if nothing is left in it."""
    with work_directory(path):
        try:
            yield
        finally:
            with suppress(OSError):
                (path / LOCK).unlink()
                path.rmdir()


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Hold a file, which may not be there yet, by a lock beside it; UserError while another process does."""
    lock = path.with_name(f".{path.name}{LOCK}")
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _held(lock, f"another process writes {path}; wait for it, or choose another output"):
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()


@contextmanager
def _held(lock: Path, refusal: str) -> Iterator[None]:
    held = FileLock(lock)
    with written(lock):
        try:
            held.acquire(blocking=False)
        except Timeout as error:
            raise UserError(refusal) from error
    try:
        yield
    finally:
        held.release()


@contextmanager
def written(path: str | os.PathLike[str], codes: Collection[int] = ()) -> Iterator[None]:
    """Turn a failure to write `path` (full disk, no permission, …) into a UserError; of `codes` alone, if given."""
    try:
        yield
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else _number_in(error)
        if code is None or (codes and code not in codes):
            raise
        raise UserError(f"cannot write {os.fspath(path)}: {explain(code)}") from error


def explain(code: int | None) -> str:
    """Say in a few words what an `errno` value means for the user; None is an input/output error."""
    code = code or errno.EIO
    return _EXPLAINED.get(code) or os.strerror(code).lower()


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write `obj` as indented JSON; for the rest see `write_text`."""
    write_text(path, json.dumps(obj, indent=2, ensure_ascii=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 text file; `path` holds the old file or the whole new one at any time; UserError if it cannot."""
    with output_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to read its bytes in the block.

    UserError if it cannot be read, or is a named pipe, which would be waited for until somebody writes. The pipes of a
    shell, such as /dev/stdin and <(command), have no name of their own, and are read.
    """
    name = os.fspath(path)
    if "\0" in name:
        raise UserError(f"cannot read {name!r}: a name of a file has no zero byte")
    if Path(path).is_fifo() and Path(os.path.realpath(path)).is_fifo():
        raise UserError(f"cannot read {name}: it is a named pipe; put a file in its place")
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot read {name}: {explain(error.errno)}") from error


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 text file without its byte order mark.

    UserError if the file is missing, unreadable, larger than `max_bytes`, or not UTF-8.
    """
    name = os.fspath(path)
    with opened(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UserError(f"{name} is larger than {max_bytes / 2**20:g} MiB; that is too large for what it is")
    return decode_utf8(content, name)


def decode_utf8(content: bytes, source: str) -> str:
    """Decode UTF-8 without its byte order mark; UserError, which names `source`, if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not valid UTF-8 text (byte {error.start}: {error.reason})") from error


def checksum(path: Path) -> str:
    """Hash of a file's bytes; UserError if it cannot be read."""
    content = hashlib.blake2b(digest_size=16)
    with opened(path) as file:
        while part := file.read(2**24):
            content.update(part)
    return content.hexdigest()


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON file that holds an object; UserError as `read_text` and `parse_json`, or if it holds no object."""
    obj = parse_json(read_text(path, max_bytes), os.fspath(path))
    if not isinstance(obj, dict):
        raise UserError(f"{os.fspath(path)} must hold a JSON object, not a {type(obj).__name__}")
    return obj


def read_model(path: str | os.PathLike[str], kind: type[T], max_bytes: int = MAX_BYTES) -> T:
    """Read a JSON file and make it a `kind`, with the errors of `read_text`, `parse_json` and `validated`."""
    return validated(kind, parse_json(read_text(path, max_bytes), os.fspath(path)), os.fspath(path))


def parse_json(text: str, source: str) -> Any:
    """Parse JSON without lone surrogates, nested less than 200 deep; UserError, which names `source`, if it is none."""
    from pydantic_core import from_json

    try:
        return from_json(text)
    except ValueError as error:
        raise UserError(f"{source} is not valid JSON: {one_line(error)}") from error


def validated(kind: type[T], obj: Any, source: str) -> T:
    """Make a `kind` (a dataclass, a pydantic model, a `TypeAdapter` type) of what JSON holds; nothing is converted.

    UserError if a field is missing, has another type, or is refused: one line with `source` (usually the file),
    field, what stands there, and what must.
    """
    try:
        text = json.dumps(obj, allow_nan=False)
    except RecursionError as error:
        raise UserError(f"{source} is nested too deeply") from error
    except (TypeError, ValueError) as error:  # a date of TOML, an infinity
        raise UserError(f"{source} cannot be used: {one_line(error)}") from error
    return validated_json(kind, text, source)


def validated_json(kind: type[T], text: str, source: str) -> T:
    """The same straight from JSON text, which is faster where a file holds many objects."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(f"{source}: {_describe(error.errors(include_url=False)[0])}") from error


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def checked(kind: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields pydantic checks, as strictly as `validated`; UserError names the field."""
    from pydantic import ValidationError
    from pydantic.dataclasses import dataclass

    made = dataclass(frozen=True, config={"strict": True, "extra": "forbid"})(kind)
    names, make = [one.name for one in fields(made)], made.__init__  # type: ignore[arg-type]

    @wraps(make)
    def init(self: Any, *values: Any, **named: Any) -> None:
        try:
            make(self, **dict(zip(names, values, strict=False)), **named)
        except ValidationError as error:
            raise UserError(_describe(error.errors(include_url=False)[0])) from error

    made.__init__ = init  # type: ignore[assignment]
    return made  # type: ignore[return-value]


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _describe(error: Mapping[str, Any]) -> str:
    """The first problem that pydantic found, as "field is …; it must be …"."""
    place = one_line(ValueError(".".join(map(str, error["loc"])) or "the whole"))
    if error["type"] == "missing":
        return f"{place} is missing"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{place} is unknown"
    if error["type"] in ("value_error", "assertion_error"):
        problem = one_line(error["ctx"]["error"])
        return f"{place}: {problem}" if error["loc"] else problem
    if error["type"] == "json_invalid":
        return one_line(ValueError(error["msg"]))
    found = repr(error["input"])
    found = found if len(found) <= 60 else found[:57] + "..."
    wanted = error["msg"].replace("Input should be", "it must be")
    return one_line(ValueError(f"{place} is {found}; {wanted}"))


def _number_in(error: Exception) -> int | None:
    """The `errno` value that safetensors puts into the text of its own errors."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _hidden_beside(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{ending}")


def _replace_directory(new: Path, final: Path) -> None:
    old = _hidden_beside(final, "old")
    try:
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
        new.rename(final)
    finally:  # Ctrl-C may come during either, and is raised when it is done
        if old.exists() and not final.exists():
            old.rename(final)
        shutil.rmtree(old, ignore_errors=True)
