"""Write files whole or not at all, and read JSON with errors that name the file."""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clover.errors import UserError

_EXPLAINED = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


@contextmanager
def output_directory(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary directory beside ``path``, which takes that name if the block succeeds.

    Args:
        path: the directory to make; its parents are made too.
        overwrite: replace ``path`` where it already holds files. The old files stay until
            the new ones are whole.

    Raises:
        UserError: ``path`` is a file or the current directory, or holds files and ``overwrite`` is off, or it
            cannot be written.
    """
    final = Path(os.path.abspath(path))
    check_output_directory(final, overwrite)
    with written(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".partial", dir=final.parent))
    try:
        with written(final, _DISK):
            yield temporary
        with written(final):
            _give_default_mode(temporary)
            check_output_directory(final, overwrite)
            _replace_directory(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_output_directory(path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Say before the work what ``output_directory`` would say after it.

    Raises:
        UserError: ``path`` is a file or the current directory, or holds files and ``overwrite`` is off.
    """
    path = Path(os.path.abspath(path))
    if path == Path.cwd():
        raise UserError("the current directory cannot be replaced; choose another directory")
    if path.is_dir():
        if not overwrite and any(path.iterdir()):
            raise UserError(
                f"{path} already exists and is not empty; choose another directory or overwrite it"
            )
    elif path.exists() or path.is_symlink():
        raise UserError(f"{path} exists and is not a directory; choose another name")


def check_output_file(path: Path) -> None:
    """Say before the work what would keep a file from being written after it; makes the file's directory.

    Raises:
        UserError: ``path`` is a directory, or cannot be written.
    """
    if path.is_dir():
        raise UserError(f"{path} is a directory; give the name of a file")
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write {path}: permission denied")


@contextmanager
def written(path: str | os.PathLike[str], codes: Collection[int] = ()) -> Iterator[None]:
    """Turn a failure to write ``path`` (full disk, no permission, …) into a UserError that names it.

    Args:
        path: what the block writes.
        codes: the ``errno`` values to turn; all of them when left out.
    """
    try:
        yield
    except Exception as error:
        code = _errno(error)
        if code is None or (codes and code not in codes):
            raise
        raise UserError(f"cannot write {os.fspath(path)}: {explain(code)}") from error


def explain(code: int) -> str:
    """Say in a few words what an ``errno`` value means for the user."""
    return _EXPLAINED.get(code) or os.strerror(code).lower()


def _errno(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors reports a full disk as an error of its own, with the number in the text.
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write ``obj`` as indented JSON; ``path`` holds the old file or the whole new one at any time.

    Raises:
        UserError: the file cannot be written.
    """
    text = json.dumps(obj, indent=2, ensure_ascii=False) + "\n"
    write_text(path, text)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 text file by way of a temporary file that is renamed.

    Raises:
        UserError: the file cannot be written.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.partial")
    with written(final):
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        UserError: the file is missing or unreadable, is not JSON, or holds something other than an object.
    """
    name = os.fspath(path)
    try:
        obj = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {name}: {explain(error.errno or 0)}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(obj, dict):
        raise UserError(f"{name} must hold a JSON object, not a {type(obj).__name__}")
    return obj


def _give_default_mode(directory: Path) -> None:
    """Undo the private mode of a temporary directory: a result is as readable as any new directory."""
    umask = os.umask(0)
    os.umask(umask)
    directory.chmod(0o777 & ~umask)


def _replace_directory(new: Path, final: Path) -> None:
    if not final.exists():
        new.rename(final)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".old", dir=final.parent))
    final.rename(old / final.name)
    try:
        new.rename(final)
    except OSError:
        (old / final.name).rename(final)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
