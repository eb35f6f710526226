"""Write files whole or not at all, lock them, and read text of bounded size; every error names the file."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from clover.errors import UserError

LOCK = ".lock"  # the name of the lock in the directory of a running process
_PARTIAL = ".*.partial"  # the names of half-written files
MAX_BYTES = 16 * 2**20  # the default limit for a file that is read as a whole

_EXPLAINED = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


@contextmanager
def output_directory(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary directory beside `path`, which is renamed to it if the block succeeds.

    With `overwrite`, the files in `path` stay until the new ones are whole. If `path` is a link, the link stays and its
    directory is replaced. UserError as in `check_output_directory`, or if the directory cannot be written.
    """
    final = _resolve_link(path)
    check_output_directory(final, overwrite)
    temporary = _hidden_sibling(final, "partial")
    with raise_on_write_error(final):
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process with the same number
        temporary.mkdir(parents=True)
    try:
        with raise_on_write_error(final, _DISK):
            yield temporary
        with raise_on_write_error(final):
            check_output_directory(final, overwrite)
            _make_readable(temporary)
            _replace_directory(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _make_readable(folder: Path) -> None:
    """Give files the usual permissions, because safetensors 0.8 makes them readable only for their owner."""
    mode = folder.stat().st_mode & 0o666
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)


@contextmanager
def output_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file beside `path`, empty at first, which is renamed to it if the block succeeds.

    If `path` is a link, the link stays and its file is replaced. UserError if it is not a file, but such as a device.
    """
    final = Path(os.path.realpath(path))
    _check_regular(final)
    temporary = _hidden_sibling(final, "partial")
    with raise_on_write_error(final):
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)  # left by a killed process with the same number
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode & 0o666
            yield temporary
            temporary.chmod(mode)  # as in `_make_readable`
            os.replace(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)


def check_output_directory(path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Raise, before the work, the errors that `output_directory` would raise after it.

    UserError if `path` is a file, a mount point, the current directory or one above it, or cannot be written, or if it
    has files and `overwrite` is off; files left by a killed process do not count.
    """
    path = _resolve_link(path)
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


def _resolve_link(path: str | os.PathLike[str]) -> Path:
    return Path(path).resolve() if Path(path).is_dir() else Path(os.path.abspath(path))


def append_to_name(path: Path, ending: str) -> Path:
    """Return the path whose name has `ending` appended, even if `path` is "." or ends with ".."."""
    named = path if path.name not in ("", "..") else Path(os.path.abspath(path))
    return named.with_name(named.name + ending)


def check_output_file(path: Path) -> None:
    """Make the directory of the file `path`; UserError if `path` is a directory or cannot be written."""
    if path.is_dir():
        raise UserError(f"{path} is a directory; give the name of a file")
    _check_regular(path)
    with raise_on_write_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write {path}: permission denied")


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is a device or a pipe, which cannot be replaced; give the name of a file")


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Create a directory and lock it for this process; UserError while another process works in it.

    Half-written files of killed processes are removed, and at the end the directory itself if it is empty.
    """
    try:
        with _locked(
            path / LOCK, f"another process works in {path}; wait for it, or choose another directory"
        ):
            for left in path.glob(_PARTIAL):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
            yield
    finally:
        with suppress(OSError):
            path.rmdir()


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Lock `path` (which need not exist) by a lock file in its directory; UserError while another process holds it."""
    lock = path.with_name(f".{path.name}{LOCK}")
    with _locked(lock, f"another process writes {path}; wait for it, or choose another output"):
        yield


@contextmanager
def _locked(lock: Path, refusal: str) -> Iterator[None]:
    file_lock = FileLock(lock)
    with raise_on_write_error(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            file_lock.acquire(blocking=False)
        except Timeout as error:
            raise UserError(refusal) from error
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        file_lock.release()


@contextmanager
def raise_on_write_error(path: str | os.PathLike[str], codes: Collection[int] = ()) -> Iterator[None]:
    """Raise UserError if the block fails to write `path` (full disk, …); with `codes` (of `errno`) only for these."""
    try:
        yield
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else _errno_in_text(error)
        if code is None or (codes and code not in codes):
            raise
        raise UserError(f"cannot write {os.fspath(path)}: {explain(code)}") from error


def explain(code: int | None) -> str:
    """Return a short explanation of an `errno` value for the user; None is an input/output error."""
    code = code or errno.EIO
    return _EXPLAINED.get(code) or os.strerror(code).lower()


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write `obj` as indented JSON, as `write_text` does."""
    write_text(path, json.dumps(obj, indent=2, ensure_ascii=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 text file; at any time `path` is the old file or the whole new one. UserError if writing fails."""
    with output_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_lines(path: Path, objects: Iterable[Any]) -> None:
    """Append objects or dataclasses to a file of JSON lines, which may not exist yet, and wait for the disk."""
    with raise_on_write_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(one, separators=(",", ":"), default=asdict) + "\n" for one in objects)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def open_to_read(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to read its bytes in the block.

    UserError if it cannot be read, or if it is a named pipe, because reading would wait until another process writes.
    The pipes of a shell, such as /dev/stdin and <(command), are not named pipes, and are read.
    """
    name = os.fspath(path)
    if "\0" in name:
        raise UserError(f"cannot read {name!r}: the name of a file must not contain a zero byte")
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
    with open_to_read(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UserError(f"{name} is larger than {max_bytes / 2**20:g} MiB, the limit for a file of this kind")
    return decode_utf8(content, name)


def decode_utf8(content: bytes, source: str) -> str:
    """Decode UTF-8 without its byte order mark; UserError, which names `source`, if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not valid UTF-8 text (byte {error.start}: {error.reason})") from error


def check_characters(text: str, source: str) -> None:
    """Raise UserError, which names `source`, for a text with a lone surrogate, because UTF-8 cannot encode it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{source} holds half a character (a lone surrogate); leave it out") from error


def checksum(path: Path) -> str:
    """Return a hash of a file's bytes; UserError if it cannot be read."""
    content = hashlib.blake2b(digest_size=16)
    with open_to_read(path) as file:
        while part := file.read(2**24):
            content.update(part)
    return content.hexdigest()


def _errno_in_text(error: Exception) -> int | None:
    """Return the `errno` value in the text of safetensors' own errors; None if there is none."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _hidden_sibling(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{ending}")


def _replace_directory(new: Path, final: Path) -> None:
    old = _hidden_sibling(final, "old")
    try:
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
        new.rename(final)
    finally:  # Ctrl-C may come during either, and is raised when it is done.
        if old.exists() and not final.exists():
            old.rename(final)
        shutil.rmtree(old, ignore_errors=True)
