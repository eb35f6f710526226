"""Parse the records of training texts: lines, objects or rows. Errors name the place of the record.

Each record is recognized by its own fields. Fields that are not listed are ignored. If several match, the first in
this table wins:

=============================  ========================================================================
`messages`, `conversations`    a conversation: list of {"role", "content"}, or of {"from", "value"} (ShareGPT)
`turns`                        what a user says, one string per turn, without answers (for `clover write`)
`prompt` [+ `completion`]      plain text, not put into a chat template; only the completion is learnt; or lists of
                               {"role", "content"}, which go through the template
`prompt` + `response`          a conversation of one turn; so are `question` + `answer` or `response`, `instruction`
                               (+ `input` or `context`) + `output` or `response`, `query` + `response`,
                               `input` + `output`
`text`                         plain text
`tokens` + `loss_mask`         token ids that the target wrote, and 1 for each that is learnt, 0 for the others
=============================  ========================================================================

Common names of roles, such as human, gpt, User and model, become those that templates know. A conversation may have
`system` (or `system_prompt`), which becomes its first message, and `tools` or `functions`, which the template shows. An
instruction or a question may have `history`: pairs of earlier questions and answers. Null fields are dropped at every
depth, because parquet fills them in. Arguments of tool calls may be objects or JSON. An answer is not learnt if its
`weight` is 0, `train`, `training`, `trainable` or `loss` is false, or `masked` is true. A record is left out if it has
another weight, images, documents or options of the chat template, or if its `label` says that a model should not write
it.

A line of `clover write` also has the field `clover`: the tokens that the target wrote. A target with the same
tokenizer learns exactly these.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field

from clover.errors import UserError
from clover.templates import REASONING, media_in, media_name
from clover.validation import parse_json, validated

MAX_RECORD_BYTES = 4 * 2**20  # a longer one would occupy the tokenizer for seconds
_SHOWN = 40  # characters of a name in a message
# Fields that say whether an answer is learnt.
_LEARNT = ("weight", "train", "training", "trainable", "loss", "loss_mask", "loss_scale", "loss_weight")
# Options of the chat template: a record is left out if it has them, because without them another text would be learnt.
_UNREAD = ("documents", "chat_template_kwargs")
# The placeholder of a picture or a sound, at the beginning or the end of a user's message.
_PLACE = re.compile(r"\A\s*<(image|video|audio)>\s*(\n|\Z)|\n\s*<(image|video|audio)>\s*\Z")
_ROLES = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "bot", "ai", "assistant"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython"), "tool"),
    **dict.fromkeys(("system", "developer"), "system"),
}
_PAIRS = (
    ("prompt", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("query", "response"),
    ("input", "output"),
)
_FIELDS = (
    *(("messages",), ("conversations",), ("turns",), ("prompt", "completion"), _PAIRS[0], ("prompt",)),
    *(*_PAIRS[1:], ("text",), ("tokens", "loss_mask")),
)
# These fields are read in addition.
_BESIDE = {
    "clover",
    "chat_template_kwargs",
    "documents",
    "enable_thinking",
    "history",
    "label",
    "system",
    "system_prompt",
    "weight",
    "tools",
    "functions",
    "context",
    "prompts",
    "development",
    "category",
    "licence",
    "license",
    "source",
}
_COLUMNS = _BESIDE.union(*_FIELDS)

Message = dict[str, Any]


@dataclass(frozen=True)
class WrittenSample:
    """Token ids of a text that a target wrote, and the spans that are learnt; the end of a span is excluded."""

    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]
    learnt: list[tuple[Annotated[int, Field(ge=0)], int]]

    def __post_init__(self) -> None:
        """Check the spans."""
        if any(not start < end <= len(self.tokens) for start, end in self.learnt):
            raise ValueError("a span of learnt does not lie within tokens")


@dataclass(frozen=True)
class Written:
    """The tokens of a line of `clover write`.

    Args:
        tokenizer: `clover.data.chat.vocabulary_hash` of their tokenizer; empty if unknown.
        cut: whether the last answer was cut off. Then the record's text does not end where the target would end it.
        samples: the text as samples; several if the chat template rewrites earlier turns.
    """

    tokenizer: str
    cut: bool
    samples: tuple[WrittenSample, ...]


@dataclass(frozen=True)
class Record:
    """One training record: either `messages`, or `prompt` and `completion` as plain text (a `text` has no prompt).

    `where` names the file and the line or record. `tools` are passed to the chat template. `written` is None unless
    `clover write` wrote the record.
    """

    where: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    completion: str = ""
    written: Written | None = None
    tools: tuple[Any, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of characters, or of tokens if the record has no text."""
        if not (self.messages or self.completion) and self.written is not None:
            return sum(len(sample.tokens) for sample in self.written.samples)
        return len(self.prompt) + len(self.completion) + sum(len(message_text(m)) for m in self.messages)

    def digest(self) -> bytes:
        """Return a hash of the text, which does not depend on `where`."""
        parts: list[Any] = [self.messages, self.prompt, self.completion, *self.tools]
        if not any(parts) and self.written is not None:
            parts += [sample.tokens for sample in self.written.samples]
        content = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.blake2b(content.encode(), digest_size=16).digest()


def is_read(column: str) -> bool:
    """Return True for a column that is read: a field of records, or a field that makes a record be left out.

    >>> is_read("messages"), is_read("image_url"), is_read("id")
    (True, True, False)
    """
    return column in _COLUMNS or media_name(column)


def parse_record(fields: Any, where: str) -> Record:
    """Parse one decoded record, which its fields identify.

    UserError if it has no accepted field, a field has the wrong type, the text is longer than 4 MiB, or nobody but the
    assistant speaks.
    """
    if not isinstance(fields, dict):
        raise UserError(f"{where}: a record must be a JSON object, not {_kind(fields)}")
    _check_fields(fields, where)
    for names in _FIELDS:
        if all(fields.get(name) is not None for name in names):
            record = _parse(names, fields, where)
            if isinstance(written := fields.get("clover"), dict):
                record = replace(record, written=validated(Written, written, f"{where}: clover"))
            if record.size > MAX_RECORD_BYTES:
                raise UserError(f"{where}: the text is longer than {MAX_RECORD_BYTES >> 20} MiB; cut it")
            return record
    found = ", ".join(sorted(str(name)[:_SHOWN] for name in fields)[:10]) or "none"
    accepted = "; ".join(" + ".join(names) for names in _FIELDS)
    raise UserError(f"{where}: no field that can be used (found: {found}; accepted: {accepted})")


def _check_fields(fields: dict[str, Any], where: str) -> None:
    """Raise UserError if another field says that the text is not to be learnt, or not alone."""
    _check_media(fields, where)
    unread = [name for name in _UNREAD if fields.get(name)]
    unread += ["enable_thinking"] if fields.get("enable_thinking") is not None else []
    if unread:
        raise UserError(f"{where}: the field {unread[0]} cannot be used; a record has only text and tools")
    answered = fields.get("completion") is not None or fields.get("response") is not None
    if (label := fields.get("label")) is False or (answered and isinstance(label, int | float) and not label):
        raise UserError(f"{where}: its label says that a model should not write this")
    if not _is_learnt("weight", {"weight": fields.get("weight", 1)}, where):
        raise UserError(f"{where}: its weight is 0")


def _check_media(fields: dict[str, Any], place: str) -> None:
    """Raise UserError if a record, a message or a part of one has a picture, a sound or a film."""
    if name := media_in(fields):
        raise UserError(
            f"{place}: it has {name[:_SHOWN]}, but a draft reads only text; if the text makes sense alone, delete the "
            "field"
        )


def _parse(names: tuple[str, ...], fields: dict[str, Any], where: str) -> Record:
    kind, value, place = names[0], fields[names[0]], f"{where}: {' + '.join(names)}"
    if kind == "text":
        return Record(where, completion=_text(value, place))
    if kind == "tokens":
        sample = {"tokens": value, "learnt": _learnt_spans(fields["loss_mask"], f"{where}: loss_mask")}
        return Record(where, written=Written("", False, (validated(WrittenSample, sample, where),)))
    if kind == "prompt" and names not in _PAIRS and not isinstance(value, list):
        completion = fields.get("completion")
        answer = "" if completion is None else _text(completion, f"{where}: completion")
        if any(map(fields.get, ("system", "system_prompt", "tools", "functions", "history"))):
            raise UserError(
                f"{where}: system, tools and history belong to a conversation; give messages, not plain text"
            )
        return Record(where, prompt=_text(value, f"{where}: prompt"), completion=answer)
    if names in _PAIRS:
        if kind == "instruction" and (more := _only(fields, where, "input", "context")):
            value = f"{_text(value, place)}\n\n{_text(more, place)}"
        asked = value if isinstance(value, list) else [{"role": "user", "content": value}]
        value = [*_history(fields, where), *asked, {"role": "assistant", "content": fields[names[1]]}]
    elif kind == "prompt" and fields.get("completion"):
        value = [*value, *_list(fields["completion"], f"{where}: completion")]
    elif fields.get("history"):
        raise UserError(f"{where}: history belongs to a question; put its turns into the messages")
    system = _only(fields, where, "system", "system_prompt")
    return Record(where, _messages(value, kind, place, system), tools=_tools(fields, where))


def _only(fields: dict[str, Any], place: str, *names: str) -> Any:
    """Return what a field holds that has several names, None if it is empty; UserError if they contradict."""
    found = [name for name in names if fields.get(name)]
    if any(fields[name] != fields[found[0]] for name in found):
        raise UserError(f"{place}: {' and '.join(found)} differ, which say the same; leave one of them out")
    return fields[found[0]] if found else None


def _history(fields: dict[str, Any], where: str) -> list[Message]:
    """Return the turns before a question, from the pairs of `history`."""
    place, turns = f"{where}: history", list[Message]()
    for pair in _list(fields["history"], place) if fields.get("history") else ():
        if not isinstance(pair, list) or len(pair) != 2:
            raise UserError(f"{place} must be a list of pairs: a question and its answer")
        said = zip(("user", "assistant"), pair, strict=True)
        turns += [{"role": role, "content": text} for role, text in said]
    return turns


def _learnt_spans(mask: Any, place: str) -> list[tuple[int, int]]:
    """Return the spans of ones in a list of ones and zeros."""
    spans, end = list[tuple[int, int]](), 0
    for learnt, run in groupby(_list(mask, place)):
        if learnt not in (0, 1):
            raise UserError(f"{place} must be a list of 0 and 1, not of {_kind(learnt)}")
        start, end = end, end + len(list(run))
        spans += [(start, end)] if learnt else []
    return spans


def _messages(value: Any, kind: str, place: str, system: Any) -> tuple[Message, ...]:
    messages = [
        _message(turn, kind, f"{place}, turn {number}")
        for number, turn in enumerate(_list(value, place), start=1)
    ]
    if system:
        said = {"role": "system", "content": _text(system, f"{place}: system")}
        if messages[0]["role"] != "system":
            messages.insert(0, said)
        elif messages[0] != said:
            raise UserError(f"{place}: the field system and the first message differ; leave one of them out")
    while kind == "conversations" and messages and messages[0]["role"] == "assistant":
        messages.pop(0)  # a dialogue that was cut in the middle
    if not messages:
        raise UserError(f"{place}: there is nothing that the assistant could answer")
    return tuple(messages)


def _message(turn: Any, kind: str, place: str) -> Message:
    """Check a message. Its other fields (tool calls, thinking) are kept, because chat templates may read them."""
    if kind == "turns" and not isinstance(turn, dict):
        turn = {"role": "user", "content": turn}
    if not isinstance(turn, dict):
        raise UserError(f"{place} must be an object, not {_kind(turn)}")
    message: Message = _without_nulls(turn)
    _check_media(message, place)
    speaker: Any = message.get("from")
    if "role" not in message and "from" in message:
        if _text(speaker, f"{place}: from").strip().lower() not in _ROLES:
            raise UserError(f"{place}: unknown speaker {speaker[:_SHOWN]!r}; known: {', '.join(_ROLES)}")
        message = {"role": message.pop("from")} | message
    if "value" in message:
        said, value = _only(message, place, "content", "value"), message.pop("value")
        message["content"] = value if said is None else said
    if message.get("train_detail"):
        raise UserError(f"{place}: parts of an answer, which train_detail names, cannot be left out")
    weights = [_is_learnt(name, message, place) for name in _LEARNT]
    if not all(weights) or message.pop("masked", False):
        message["weight"] = 0
    role = _text(message.get("role"), f"{place}: role")
    message["role"] = _ROLES.get(role.strip().lower(), role)
    if _ROLES.get(str(speaker).strip().lower(), message["role"]) != message["role"]:
        raise UserError(f"{place}: from and role differ, which say the same; leave one of them out")
    if call := message.pop("function_call", None):
        if message.get("tool_calls"):
            raise UserError(f"{place}: it has function_call and tool_calls; leave one of them out")
        message["tool_calls"] = [call]  # `function_call` is the older name in OpenAI's interface
    place_of_calls = f"{place}: tool_calls"
    if calls := _from_json(message.pop("tool_calls", None) or None, place_of_calls):
        calls = [_from_json(call, place_of_calls, "function") for call in _list(calls, place_of_calls)]
        message["tool_calls"] = calls
    said = message.get("content")
    if message["role"] == "user" and isinstance(said, str) and _PLACE.search(said):
        raise UserError(f"{place}: it has a placeholder of a picture or sound, but a draft reads only text")
    silent = "" if calls or any(message.get(name) for name in REASONING) else None
    content = message.get("content", silent)
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text":
                its = part.get("type") if isinstance(part, dict) else None
                found = f"a part of type {str(its)[:_SHOWN]}" if its else "a part without a type"
                raise UserError(f"{place}: it has {found}; only content of type text can be used")
            _check_media(part, place)
        parts = [_text(part.get("text"), f"{place}: text") for part in content]
        if len(parts) > 1:
            return message | {"content": content}
        content = "".join(parts)
    return message | {"content": _text(content, f"{place}: content")}


def _is_learnt(name: str, message: Message, place: str) -> bool:
    """Remove a weight from a message, and return True if it says that the answer is learnt."""
    weight = message.pop(name, None)
    weight = 1 if weight is None else weight
    if weight not in (0, 1):
        raise UserError(f"{place}: {name} is {repr(weight)[:_SHOWN]}; an answer is learnt (1) or not (0)")
    return bool(weight)


def message_text(message: Message) -> str:
    """Return the content of a message without its division into parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _tools(fields: dict[str, Any], where: str) -> tuple[Any, ...]:
    """Return the tools of a record; the list, or each tool in it, may be a string of JSON."""
    place = f"{where}: tools"
    if not (value := _from_json(_only(fields, where, "tools", "functions"), place)):
        return ()
    tools = [_from_json(one, place, "function", "parameters") for one in _list(value, place)]
    if not all(isinstance(one, dict) for one in tools):
        raise UserError(f"{place} must be a list of objects")
    return tuple(_without_nulls(tools))


def _from_json(value: Any, place: str, *inside: str) -> Any:
    """Return a value, decoded if it is a string of JSON; so are its fields `inside`, one within the other."""
    value = parse_json(value, place) if isinstance(value, str) else value
    if isinstance(value, dict):
        value = value | {name: _from_json(value[name], place, *inside) for name in inside if value.get(name)}
    return value


def _without_nulls(value: Any) -> Any:
    """Return a value without the fields that are null, at every depth."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


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
