"""Records of training files, each read when it is needed, with errors that name file and line.

A .txt file is one text, a long one read in pieces of some 64 KiB, each cut after a whole line; .jsonl has one JSON
object per line, .json an array of objects or one object, which is read into memory whole; .parquet one row per
record. OWNER/NAME, or OWNER/NAME:SPLIT, is a data set of the Hugging Face Hub (these two: extra `train`).

A record is recognised by its fields, each record by itself; other fields are ignored. If several match, the first in
this table wins:

==========================  ===========================================================================
`messages`                  a conversation: list of {"role", "content"}
`conversations`             the same as ShareGPT writes it: list of {"from", "value"}
`turns`                     what a user says, one string per turn, without answers (for `clover write`)
`prompt` [+ `completion`]   plain text, not put into a chat template; only the completion is learnt; or lists of
                            {"role", "content"}, which go through the template
`question` + `answer`       a conversation of one turn
`text`                      plain text
`tokens` + `loss_mask`      token ids that the target wrote, and 1 for each that is learnt, 0 for the others
==========================  ===========================================================================

A line of `clover write` has the field `clover` as well: the tokens that the target wrote, which are learnt as they are
by a target with the same tokenizer.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clover.data.hub import is_hub_name, open_hub, open_parquet, probe_records, read_record
from clover.errors import UserError
from clover.files import decode_utf8, explain, open_to_read
from clover.validation import parse_json, validated

_MAX_RECORD_BYTES = 4 * 2**20  # a longer one would occupy the tokenizer for seconds
_MAX_JSON_BYTES = 2 * 2**30
_PIECE_BYTES = 2**16
_PROBES, _PROBE_BYTES = 64, 2**16  # parts of a file whose hash identifies it
_SHOWN = 40  # characters of a name in a message
_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "assistant"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    "system": "system",
}
_FIELDS = (
    *(("messages",), ("conversations",), ("turns",), ("prompt",)),
    *(("question", "answer"), ("text",), ("tokens", "loss_mask")),
)
# Other fields that are read, if they are there.
_BESIDE = {"clover", "completion", "prompts", "development", "category", "licence", "license", "source"}
_COLUMNS = sorted(_BESIDE.union(*_FIELDS))

Message = dict[str, Any]


class RecordRefused(UserError):
    """A record cannot be a training text, though others of its file can."""


@dataclass(frozen=True)
class WrittenSample:
    """Token ids of a text that a target wrote, and the spans of them that are learnt, each with its end excluded."""

    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]
    learnt: list[tuple[Annotated[int, Field(ge=0)], int]]

    def __post_init__(self) -> None:
        """Check the spans."""
        if any(not start < end <= len(self.tokens) for start, end in self.learnt):
            raise ValueError("a span of learnt does not lie within tokens")


@dataclass(frozen=True)
class Written:
    """What a line of `clover write` says of its tokens.

    Args:
        tokenizer: `clover.data.chat.vocabulary_hash` of the tokenizer that they are of; empty if unknown.
        cut: whether the last answer was cut off, so that the record's text does not end where the target would end it.
        samples: the text as samples, several where the chat template rewrites earlier turns.
    """

    tokenizer: str
    cut: bool
    samples: tuple[WrittenSample, ...]


@dataclass(frozen=True)
class Record:
    """One training record: either `messages`, or `prompt` and `completion` as plain text (a `text` has no prompt).

    `where` names the file and the line or record; `written` is that of `clover write`, None for other records.
    """

    where: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    completion: str = ""
    written: Written | None = None

    @property
    def size(self) -> int:
        """Return the number of characters, or of tokens where there is no text."""
        if not (self.messages or self.completion) and self.written is not None:
            return sum(len(sample.tokens) for sample in self.written.samples)
        return len(self.prompt) + len(self.completion) + sum(len(m["content"]) for m in self.messages)

    def digest(self) -> bytes:
        """Return a hash of the text, which does not depend on where it stands."""
        parts: list[Any] = [self.messages, self.prompt, self.completion]
        if not any(parts) and self.written is not None:
            parts += [sample.tokens for sample in self.written.samples]
        content = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.blake2b(content.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Rows:
    """The records of a file or data set.

    Args:
        count: how many there are.
        read: returns what was decoded of record i < count, and where it stands.
        probe: returns a hash that identifies the content.
    """

    count: int
    read: Callable[[int], tuple[Any, str]]
    probe: Callable[[], bytes]

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        return map(self.read, range(self.count))


def open_rows(name: str | Path) -> Rows:
    """Find the records of one file, or of a data set of the Hub.

    UserError, which names the file and the line, if it is missing, unreadable, empty or of an unknown kind, or a line
    is too long; from `read`, where a record cannot be decoded.
    """
    path = Path(name)
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None and is_hub_name(str(name)) and not path.exists():
        rows = _data_set_rows(open_hub(str(name), _COLUMNS), str(name))
    elif opener is None:
        raise UserError(
            f"{path}: unknown kind of file; accepted: {', '.join(_OPENERS)}, and OWNER/NAME of a data set of the Hub"
        )
    else:
        with open_to_read(path):
            rows = opener(path)
    if not rows.count:
        raise UserError(f"{name} holds no records")
    return rows


def parse_record(fields: Any, where: str) -> Record:
    """Recognise one decoded record by its fields.

    UserError if no accepted field is there, one has the wrong type, or the text is longer than 4 MiB; RecordRefused
    if nobody but the assistant speaks in what ShareGPT writes.
    """
    if not isinstance(fields, dict):
        raise UserError(f"{where}: a record must be a JSON object, not {_kind(fields)}")
    for names in _FIELDS:
        if all(fields.get(name) is not None for name in names):
            record = _parse(names[0], fields, where)
            if isinstance(written := fields.get("clover"), dict):
                record = replace(record, written=validated(Written, written, f"{where}: clover"))
            if record.size > _MAX_RECORD_BYTES:
                raise UserError(f"{where}: the text is longer than {_MAX_RECORD_BYTES >> 20} MiB; cut it")
            return record
    found = ", ".join(sorted(str(name)[:_SHOWN] for name in fields)[:10]) or "none"
    accepted = "; ".join(" + ".join(names) for names in _FIELDS)
    raise UserError(f"{where}: no field that can be used (found: {found}; accepted: {accepted})")


def plain_text(content: str, where: str) -> str:
    """Return the content of a text file, with the line breaks that models write; UserError if it is no text."""
    if "\0" in content:
        raise UserError(f"{where} is not text: it holds zero bytes")
    return content.replace("\r\n", "\n").replace("\r", "\n")


def _open_lines(path: Path) -> Rows:
    """Find the lines that are not blank: where they start, and their numbers."""
    starts, numbers = array("q"), array("q")
    for number, start, line in _lines(path, "cut it"):
        if line.strip():
            starts.append(start)
            numbers.append(number)

    def read(index: int) -> tuple[Any, str]:
        where = f"{path}, line {numbers[index]}"
        return parse_json(_text_between(path, starts[index], None, where), where), where

    return Rows(len(starts), read, lambda: _probe(path))


def _open_text(path: Path) -> Rows:
    """Find the pieces of a text: each ends with the line that reaches the next multiple of 64 KiB."""
    cuts, lines, end = array("q", [0]), array("q", [1]), 0
    for number, start, line in _lines(path, "break it"):
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
    content = parse_json(decode_utf8(path.read_bytes(), str(path)), str(path))
    records = content if isinstance(content, list) else [content]
    return Rows(len(records), lambda i: (records[i], f"{path}, record {i + 1}"), lambda: _probe(path))


def _open_parquet(path: Path) -> Rows:
    return replace(_data_set_rows(open_parquet(str(path), _COLUMNS), str(path)), probe=lambda: _probe(path))


def _data_set_rows(dataset: Any, name: str) -> Rows:
    def read(index: int) -> tuple[Any, str]:
        where = f"{name}, record {index + 1}"
        return read_record(dataset, index, where), where

    return Rows(len(dataset), read, lambda: probe_records(dataset, name))


def _lines(path: Path, remedy: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, from 1, start and bytes of each line; UserError where one is too long."""
    with path.open("rb") as file:
        start = 0
        for number in count(1):
            line = file.readline(_MAX_RECORD_BYTES + 1)
            if not line:
                return
            if len(line) > _MAX_RECORD_BYTES:
                limit = _MAX_RECORD_BYTES >> 20
                raise UserError(f"{path}, line {number}: longer than {limit} MiB; {remedy}")
            yield number, start, line
            start += len(line)


def _probe(path: Path) -> bytes:
    """Return a hash of a file's size and of parts all over it."""
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


def _parse(kind: str, fields: dict[str, Any], where: str) -> Record:
    value, place = fields[kind], f"{where}: {kind}"
    completion = fields.get("completion")
    if kind == "text":
        return Record(where, completion=_text(value, place))
    if kind == "tokens":
        sample = {"tokens": value, "learnt": _learnt_spans(fields["loss_mask"], f"{where}: loss_mask")}
        return Record(where, written=Written("", False, (validated(WrittenSample, sample, where),)))
    if kind == "question":
        turns = [{"role": "user", "content": value}, {"role": "assistant", "content": fields["answer"]}]
        return Record(where, messages=_messages(turns, kind, f"{place} + answer"))
    if kind != "prompt":
        return Record(where, messages=_messages(value, kind, place))
    if isinstance(value, list):
        answer = _list(completion, f"{where}: completion") if completion else []
        return Record(where, messages=_messages([*value, *answer], kind, f"{place} + completion"))
    answer = "" if completion is None else _text(completion, f"{where}: completion")
    return Record(where, prompt=_text(value, place), completion=answer)


def _learnt_spans(mask: Any, place: str) -> list[tuple[int, int]]:
    """Return the spans of ones in a list of ones and zeros."""
    spans, end = list[tuple[int, int]](), 0
    for learnt, run in groupby(_list(mask, place)):
        if learnt not in (0, 1):
            raise UserError(f"{place} must be a list of 0 and 1, not of {_kind(learnt)}")
        start, end = end, end + len(list(run))
        spans += [(start, end)] if learnt else []
    return spans


def _messages(value: Any, kind: str, place: str) -> tuple[Message, ...]:
    messages = [
        _message(turn, kind, f"{place}, turn {number}")
        for number, turn in enumerate(_list(value, place), start=1)
    ]
    while kind == "conversations" and messages and messages[0]["role"] == "assistant":
        messages.pop(0)  # a dialogue that was cut in the middle
    if not messages:
        raise RecordRefused(f"{place}: nobody says anything that the assistant could answer")
    return tuple(messages)


def _message(turn: Any, kind: str, place: str) -> Message:
    """Check a message and keep its further fields (tool calls, thinking), which chat templates may read."""
    if kind == "turns" and not isinstance(turn, dict):
        turn = {"role": "user", "content": turn}
    if not isinstance(turn, dict):
        raise UserError(f"{place} must be an object, not {_kind(turn)}")
    if kind == "conversations" and "role" not in turn:
        speaker = _text(turn.get("from"), f"{place}: from")
        if speaker not in _SHAREGPT_ROLES:
            raise UserError(
                f"{place}: unknown speaker {speaker[:_SHOWN]!r}; known: {', '.join(_SHAREGPT_ROLES)}"
            )
        turn = {"role": _SHAREGPT_ROLES[speaker], "content": turn.get("value")}
    message = {key: value for key, value in turn.items() if value is not None}
    _text(message.get("role"), f"{place}: role")
    content = message.get("content", "" if message.get("tool_calls") else None)
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise UserError(f"{place}: only content of type text can be used")
        content = "".join(_text(part.get("text"), f"{place}: text") for part in content)
    return message | {"content": _text(content, f"{place}: content")}


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{place} must be a list that is not empty, not {_kind(value)}")
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place} must be text, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text"}
    names |= {dict: "an object", list: "a list" if value else "an empty list"}
    return names.get(type(value), type(value).__name__)


_OPENERS: dict[str, Callable[[Path], Rows]] = {
    ".txt": _open_text,
    ".jsonl": _open_lines,
    ".json": _open_json,
    ".parquet": _open_parquet,
}
