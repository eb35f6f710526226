"""Read the records of files and data sets, each when it is needed. Errors name the file and the line.

- .txt: one text. A long one is read in pieces of some 64 KiB, each cut after a whole line.
- .jsonl: one JSON object per line. .json: an array of objects or one object, read into memory as a whole.
- .parquet: one record per row. OWNER/NAME[:SPLIT]: a data set of the Hugging Face Hub (both: extra `train`).
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from clover.data.formats import MAX_RECORD_BYTES
from clover.data.hub import is_hub_name, open_hub, open_parquet, probe_records, read_record
from clover.errors import UserError
from clover.files import check_characters, decode_utf8, explain, open_to_read
from clover.validation import parse_json

_MAX_JSON_BYTES = 2 * 2**30
_PIECE_BYTES = 2**16
_FIRST_BYTES = 1024
_OTHER_KINDS = {
    b"version https://git-lfs": "is a pointer of Git LFS, and the file itself was not downloaded; run git lfs pull",
    b"\x1f\x8b": "is compressed by gzip; unpack it",
    b"BZh": "is compressed by bzip2; unpack it",
    b"\xfd7zXZ": "is compressed by xz; unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; unpack it",
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"\xff\xfe\0\0": "is UTF-32 text; convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)",
    b"\xff\xfe": "is UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "is UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"<!DOCTYPE": "is a web page in the place of the file; download it again",
}
_PROBES, _PROBE_BYTES = 64, 2**16  # parts of a file whose hash identifies it


@dataclass(frozen=True)
class Rows:
    """The records of a file or data set.

    Args:
        count: the number of records.
        read: returns record i < count, decoded, and its place.
        probe: returns a hash that identifies the content.
    """

    count: int
    read: Callable[[int], tuple[Any, str]]
    probe: Callable[[], bytes]

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        return map(self.read, range(self.count))


def open_rows(name: str | Path) -> Rows:
    """Find the records of one file, or of a data set of the Hub.

    UserError if the file is missing, unreadable, empty or of an unknown kind, or a line is too long. `read` raises
    UserError if a record cannot be decoded.
    """
    path = Path(name)
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None and is_hub_name(str(name)) and not path.exists():
        rows = _data_set_rows(open_hub(str(name)), str(name))
    else:
        if opener is not None or path.is_file():
            with open_to_read(path) as file:
                _check_kind(path, file.read(_FIRST_BYTES))
        if opener is None:
            accepted = ", ".join((*_OPENERS, "and OWNER/NAME of a data set of the Hub"))
            raise UserError(f"{path}: unknown kind of file; accepted: {accepted}")
        rows = opener(path)
    if not rows.count:
        raise UserError(f"{name} holds no records")
    return rows


def _check_kind(path: Path, start: bytes) -> None:
    """Raise UserError if the first bytes of a file show another kind than its name."""
    for magic, what in _OTHER_KINDS.items():
        if start.startswith(magic):
            raise UserError(f"{path} {what}")
    if path.suffix.lower() == ".jsonl" and start.partition(b"\n")[0].strip() in (b"[", b"{"):
        raise UserError(
            f"{path} is not one JSON object per line; if it is one JSON array or object, name it .json"
        )


def plain_text(content: str, where: str) -> str:
    """Return the content of a text file with the line breaks that models write; UserError if it is not text."""
    if "\0" in content:
        raise UserError(f"{where} is not text: it holds zero bytes")
    return content.replace("\r\n", "\n").replace("\r", "\n")


def _open_lines(path: Path) -> Rows:
    """Find the starts and numbers of all lines that are not blank. Lines that are too long are not read."""
    starts, numbers, long = array("q"), array("q"), set[int]()
    for number, start, line in _lines(path):
        if line.strip():
            if len(line) > MAX_RECORD_BYTES:
                long.add(len(starts))
            starts.append(start)
            numbers.append(number)

    def read(index: int) -> tuple[Any, str]:
        where = f"{path}, line {numbers[index]}"
        if index in long:
            raise UserError(f"{where}: longer than {MAX_RECORD_BYTES >> 20} MiB; cut it")
        return parse_json(_text_between(path, starts[index], None, where), where), where

    return Rows(len(starts), read, lambda: _probe(path))


def _open_text(path: Path) -> Rows:
    """Find the pieces of a text: each ends with the line that reaches the next multiple of 64 KiB."""
    cuts, lines, end = array("q", [0]), array("q", [1]), 0
    for number, start, line in _lines(path):
        if len(line) > MAX_RECORD_BYTES:
            raise UserError(f"{path}, line {number}: longer than {MAX_RECORD_BYTES >> 20} MiB; break it")
        end = start + len(line)
        if end // _PIECE_BYTES > start // _PIECE_BYTES:
            cuts.append(end)
            lines.append(number + 1)
    if cuts[-1] != end:
        cuts.append(end)
    whole = len(cuts) == 2

    def read(index: int) -> tuple[Any, str]:
        where = str(path) if whole else f"{path}, from line {lines[index]}"
        return {"text": plain_text(_text_between(path, cuts[index], cuts[index + 1], where), where)}, where

    empty = whole and not read(0)[0]["text"].strip()
    return Rows(0 if empty else len(cuts) - 1, read, lambda: _probe(path))


def _open_json(path: Path) -> Rows:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise UserError(f"{path} is over {_MAX_JSON_BYTES >> 30} GiB; write it as .jsonl")
    text, broken = decode_utf8(path.read_bytes(), str(path)), False
    try:
        content = parse_json(text, str(path))
    except UserError:  # json reads half characters and deep records, too, so that one does not end the others
        if (content := _parsed_leniently(text)) is None:
            if isinstance(_parsed_leniently(text.partition("\n")[0]), dict):
                raise UserError(f"{path} holds one JSON object per line; name it .jsonl") from None
            raise
        broken = True
    records = content if isinstance(content, list) else [content]

    def read(index: int) -> tuple[Any, str]:
        where = f"{path}, record {index + 1}"
        return _checked(records[index], where) if broken else records[index], where

    return Rows(len(records), read, lambda: _probe(path))


def _parsed_leniently(text: str) -> Any:
    """Parse JSON that may hold lone surrogates; return None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _checked(record: Any, where: str) -> Any:
    """Return a record that was read leniently; UserError if it holds half a character, or is nested too deeply."""
    try:
        text = json.dumps(record, ensure_ascii=False)
    except RecursionError as error:
        raise UserError(f"{where} is nested too deeply") from error
    check_characters(text, where)
    return parse_json(text, where)


def _open_parquet(path: Path) -> Rows:
    return replace(_data_set_rows(open_parquet(str(path)), str(path)), probe=lambda: _probe(path))


def _data_set_rows(dataset: Any, name: str) -> Rows:
    def read(index: int) -> tuple[Any, str]:
        where = f"{name}, record {index + 1}"
        return read_record(dataset, index, where), where

    return Rows(len(dataset), read, lambda: probe_records(dataset, name))


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number (from 1), start and bytes of each line; one that is too long is cut a byte past the limit."""
    with path.open("rb") as file:
        start = 0
        for number in count(1):
            line = file.readline(MAX_RECORD_BYTES + 1)
            if not line:
                return
            end = line
            while len(line) > MAX_RECORD_BYTES and end and not end.endswith(b"\n"):
                end = file.readline(MAX_RECORD_BYTES)
            yield number, start, line
            start = file.tell()


def _probe(path: Path) -> bytes:
    """Return a hash of a file's size and of evenly spaced parts."""
    size = path.stat().st_size
    parts = [str(size).encode()]
    with path.open("rb") as file:
        for part in range(_PROBES):
            file.seek(part * size // _PROBES)
            parts.append(file.read(_PROBE_BYTES))
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def _text_between(path: Path, start: int, end: int | None, where: str) -> str:
    """Return the text between two bytes of a file, or from `start` to the end of its line."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return decode_utf8(file.readline() if end is None else file.read(end - start), where)
    except OSError as error:
        raise UserError(f"cannot read {path}: {explain(error.errno)}") from error


_OPENERS: dict[str, Callable[[Path], Rows]] = {
    ".txt": _open_text,
    ".jsonl": _open_lines,
    ".json": _open_json,
    ".parquet": _open_parquet,
}
