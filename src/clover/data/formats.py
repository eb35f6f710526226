"""Read training records from files, one at a time, and say exactly where something is wrong.

==============  =======================================================================================
.txt            the whole file is one text
.jsonl          one JSON object per line
.json           an array of objects, one object, or one object per line
.parquet        one row per record (needs pyarrow: the extra `train`)
==============  =======================================================================================

A record is recognised by its fields, each record by itself; other fields are ignored:

==========================  ===========================================================================
`messages`                  a conversation: list of {"role", "content"}
`conversations`             the same as ShareGPT writes it: list of {"from", "value"}
`turns`                     what a user says, one string per turn, without answers (for --regenerate)
`prompt` [+ `completion`]   plain text, not put into a chat template; only the completion is learnt
`question` + `answer`       a conversation of one turn
`text`                      plain text
==========================  ===========================================================================
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from clover.errors import UserError
from clover.files import explain

_MAX_RECORD_BYTES = 256 * 2**20
_MAX_JSON_BYTES = 4 * 2**30
_PARQUET_ROWS = 256
_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "assistant"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    "system": "system",
}

Message = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One training record: either `messages`, or `prompt` and `completion` as plain text.

    A `text` record is a completion without a prompt. `where` names the file and the line or record.
    """

    where: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    completion: str = ""


def read_records(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Record]:
    """Yield the records of all files in order; only one record (for .json: one file) is in memory at a time.

    Raises:
        UserError: a file is missing, unreadable, empty or of an unknown kind, or a record cannot be understood.
            The message names the file and the line or record.
    """
    for path in map(Path, paths):
        empty = True
        for where, fields in raw_records(path):
            empty = False
            yield parse_record(fields, where)
        if empty:
            raise UserError(f"{path} holds no records")


def parse_record(fields: Any, where: str) -> Record:
    """Recognise one decoded record by its fields.

    Raises:
        UserError: no accepted field is there, or one has the wrong type.
    """
    if not isinstance(fields, dict):
        raise UserError(f"{where}: a record must be a JSON object, not {_kind(fields)}")
    for names, parse in _PARSERS.items():
        if all(fields.get(name) is not None for name in names):
            try:
                return parse(fields, where)
            except UnicodeEncodeError as error:
                raise UserError(f"{where}: the text holds half a character (a lone surrogate)") from error
    found = ", ".join(sorted(map(str, fields))[:10]) or "none"
    accepted = "; ".join(" + ".join(names) for names in _PARSERS)
    raise UserError(f"{where}: no field that can be used (found: {found}; accepted: {accepted})")


def raw_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each record of one file as it was decoded, with where it stands.

    Raises:
        UserError: the file is missing, unreadable or of an unknown kind; names the file and the line or record.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"{path}: unknown kind of file; accepted: {', '.join(_READERS)}")
    if path.is_dir():
        raise UserError(f"{path} is a directory; name the files in it")
    try:
        yield from reader(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {explain(error.errno or errno.EIO)}") from error


def _read_txt(path: Path) -> Iterator[tuple[str, Any]]:
    if path.stat().st_size > _MAX_RECORD_BYTES:
        raise UserError(
            f"{path} is over {_MAX_RECORD_BYTES >> 20} MiB; write it as .jsonl with one text per line"
        )
    text = _decode(path.read_bytes(), str(path))
    if "\0" in text:
        raise UserError(f"{path} is not text: it holds zero bytes")
    if text.strip():
        yield str(path), {"text": text}


def _read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file, path), start=1):
            where = f"{path}, line {number}"
            if text := _decode(line, where).strip():
                yield where, _parse_json(text, where)


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    number = 0
    while line := file.readline(_MAX_RECORD_BYTES + 1):
        number += 1
        if len(line) > _MAX_RECORD_BYTES:
            raise UserError(f"{path}, line {number}: longer than {_MAX_RECORD_BYTES >> 20} MiB")
        yield line


def _read_json(path: Path) -> Iterator[tuple[str, Any]]:
    if _is_json_lines(path):
        yield from _read_jsonl(path)
        return
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise UserError(
            f"{path} is over {_MAX_JSON_BYTES >> 30} GiB; write it as .jsonl, which is read line by line"
        )
    content = _parse_json(_decode(path.read_bytes(), str(path)), str(path))
    records = content if isinstance(content, list) else [content]
    for number, record in enumerate(records, start=1):
        yield f"{path}, record {number}", record


def _is_json_lines(path: Path) -> bool:
    """Whether the first line is a whole object and more follows."""
    with path.open("rb") as file:
        first, second = file.readline(_MAX_RECORD_BYTES), file.readline(_MAX_RECORD_BYTES)
    if not first.lstrip(b"\xef\xbb\xbf \t").startswith(b"{") or not second.strip():
        return False
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return False
    return True


def _read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"reading {path} needs pyarrow: pip install 'clover-decoding[train]'") from error
    number = 0
    accepted = {name for names in _PARSERS for name in names} | {"completion"}
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = [name for name in names if name in accepted] or names
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, record {number}", row
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a readable parquet file: {_first_line(error)}") from error


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not valid UTF-8 text (byte {error.start}: {error.reason})") from error


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{where}: the JSON is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON: {_first_line(error)}") from error


def _parse_messages(fields: dict[str, Any], where: str) -> Record:
    return Record(where, messages=_messages(fields["messages"], "messages", where))


def _parse_sharegpt(fields: dict[str, Any], where: str) -> Record:
    messages = []
    for number, turn in enumerate(_list(fields["conversations"], "conversations", where), start=1):
        place = f"{where}: conversations, turn {number}"
        if isinstance(turn, dict) and "role" in turn:
            messages.append(_message(turn, place))
            continue
        if not isinstance(turn, dict) or "from" not in turn or "value" not in turn:
            raise UserError(f"{place} must be an object with from and value")
        role = _SHAREGPT_ROLES.get(_text(turn["from"], f"{place}: from"))
        if role is None:
            raise UserError(f"{place}: unknown speaker {turn['from']!r}; known: {', '.join(_SHAREGPT_ROLES)}")
        messages.append({"role": role, "content": _text(turn["value"], f"{place}: value")})
    while messages and messages[0]["role"] == "assistant":  # a dialogue that was cut in the middle
        messages.pop(0)
    return Record(where, messages=tuple(messages))


def _parse_turns(fields: dict[str, Any], where: str) -> Record:
    turns = _list(fields["turns"], "turns", where)
    if turns and isinstance(turns[0], dict):
        return Record(where, messages=_messages(turns, "turns", where))
    texts = [_text(turn, f"{where}: turns, turn {i}") for i, turn in enumerate(turns, start=1)]
    return Record(where, messages=tuple({"role": "user", "content": text} for text in texts))


def _parse_prompt(fields: dict[str, Any], where: str) -> Record:
    prompt, completion = fields["prompt"], fields.get("completion")
    if isinstance(prompt, list):
        answer = [] if completion is None else _list(completion, "completion", where)
        return Record(where, messages=_messages([*prompt, *answer], "prompt + completion", where))
    answer = "" if completion is None else _text(completion, f"{where}: completion")
    return Record(where, prompt=_text(prompt, f"{where}: prompt"), completion=answer)


def _parse_question(fields: dict[str, Any], where: str) -> Record:
    question, answer = (_text(fields[name], f"{where}: {name}") for name in ("question", "answer"))
    return Record(
        where, messages=({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    )


def _parse_text(fields: dict[str, Any], where: str) -> Record:
    return Record(where, completion=_text(fields["text"], f"{where}: text"))


def _messages(value: Any, name: str, where: str) -> tuple[Message, ...]:
    turns = _list(value, name, where)
    return tuple(_message(turn, f"{where}: {name}, turn {i}") for i, turn in enumerate(turns, start=1))


def _message(turn: Any, place: str) -> Message:
    """Check a message and keep its further fields (tool calls, thinking), which chat templates may read."""
    if not isinstance(turn, dict) or "role" not in turn:
        raise UserError(f"{place} must be an object with role and content")
    message = {key: value for key, value in turn.items() if value is not None}
    _text(message.get("role"), f"{place}: role")
    content = message.get("content", "" if message.get("tool_calls") else None)
    if isinstance(content, list):
        content = "".join(_part(part, place) for part in content)
    return message | {"content": _text(content, f"{place}: content")}


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise UserError(f"{place}: only content of type text can be used")
    return _text(part.get("text"), f"{place}: text")


def _list(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: {name} must be a list that is not empty, not {_kind(value)}")
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place} must be text, not {_kind(value)}")
    value.encode()
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text"}
    names |= {dict: "an object", list: "a list" if value else "an empty list"}
    return names.get(type(value), type(value).__name__)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".txt": _read_txt,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
_PARSERS: dict[tuple[str, ...], Callable[[dict[str, Any], str], Record]] = {
    ("messages",): _parse_messages,
    ("conversations",): _parse_sharegpt,
    ("turns",): _parse_turns,
    ("prompt",): _parse_prompt,
    ("question", "answer"): _parse_question,
    ("text",): _parse_text,
}
