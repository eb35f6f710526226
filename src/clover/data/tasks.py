"""Read prompts from task files, each with its group, by which results are reported.

.json, .jsonl and .parquet hold records as `clover.data.formats` reads them (the prompt of a `text` is its opening), or
the object {"prompts": [...], "development": [...]} of lists of texts. A .txt has one prompt per line. Other files are
cut into prompts.

The group is Spec-Bench's task (the categories of MT-bench are one task), else the file's name without its suffix.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformers import PreTrainedTokenizerBase

from clover.data.chat import encode_prompt
from clover.data.formats import Message, message_text, parse_record
from clover.data.rows import open_rows, plain_text
from clover.errors import UserError
from clover.files import read_text
from clover.measure.report.words import left_out
from clover.templates import encode_text

PROMPT_TOKENS = 64
_MOST_CHARACTERS = 12 * PROMPT_TOKENS  # more than the tokens of a prompt have
_MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
_RECORD_FILES = (".json", ".jsonl", ".parquet")
_LISTS = ("prompts", "development")
_MAX_BYTES = 64 * 2**20
_STRIDE = 2000  # characters between two cuts of a text

Window = tuple[int | None, int | None]


@dataclass(frozen=True)
class Task:
    """A prompt that is not tokenized yet: either `messages`, for the chat template, or plain `text`.

    `where` names the file and the line or record. The prompt is the slice `window` of the text's tokens. `tools` are
    passed to the chat template.
    """

    group: str
    where: str
    messages: tuple[Message, ...] = ()
    text: str = ""
    window: Window = (None, None)
    tools: tuple[Any, ...] = ()


@dataclass(frozen=True)
class TaskPrompt:
    """The token ids of a prompt, its group, and the file and line that it comes from."""

    group: str
    tokens: tuple[int, ...]
    where: str


class Chosen(NamedTuple):
    """Prompts that fit into the context, and the number of prompts that were tried and do not."""

    prompts: list[TaskPrompt]
    left_out: int


_Grouped = TypeVar("_Grouped", Task, TaskPrompt)


def read_tasks(paths: Iterable[str | os.PathLike[str]]) -> list[Task]:
    """Read the tasks of files, in order. A warning counts the records that cannot be used.

    UserError if a file cannot be read, or none of its records can be used; it says what is wrong with the first.
    """
    found: list[Task] = []
    for path in map(Path, paths):
        tasks = list(_read_file(path))
        if not tasks and path.suffix.lower() in (*_RECORD_FILES, ".txt"):
            raise UserError(f"{path} holds no prompts")
        found += tasks
    if not found:
        raise UserError("the files hold no text that could be cut into prompts")
    return found


def spread(tasks: Sequence[_Grouped], limit: int) -> list[_Grouped]:
    """Choose at most `limit` tasks: as many of each group as possible, spaced evenly over it, group after group.

    >>> tasks = [Task(group, str(i)) for i, group in enumerate("aaaabb")]
    >>> [task.where for task in spread(tasks, 3)]
    ['0', '2', '4']
    """
    groups: dict[str, list[_Grouped]] = {}
    for task in tasks:
        groups.setdefault(task.group, []).append(task)
    in_turn = [task for turn in zip_longest(*groups.values()) for task in turn if task is not None]
    counts = Counter(task.group for task in in_turn[:limit])
    return [
        group[i] for name, group in groups.items() for i in spaced(len(group), counts[name])[: counts[name]]
    ]


def spaced(total: int, count: int) -> list[int]:
    """Return the numbers below `total`: first `count` evenly spaced ones, then the others.

    The first prompts of a benchmark's file are often of one category, so they do not stand for all.

    >>> spaced(8, 3)
    [0, 2, 5, 1, 3, 4, 6, 7]
    """
    if count >= total:
        return list(range(total))
    first = [i * total // count for i in range(count)]
    return [*first, *sorted(set(range(total)) - set(first))]


def choose_fitting(
    tasks: Sequence[Task],
    tokenizer: PreTrainedTokenizerBase,
    longest_run: int,
    max_new_tokens: int,
    limit: int,
) -> Chosen:
    """Choose at most `limit` prompts that leave room for all new tokens, so that each method writes as many.

    They are spread over the groups. Other prompts replace those that are too long. No more are tokenized than this
    takes, because a file may hold many. UserError if no prompt leaves room.
    """
    count, room = limit, longest_run - max_new_tokens
    while True:
        tried, problems = list[TaskPrompt](), list[str]()
        for task in spread(tasks, count):
            try:
                tried.append(encode_task(task, tokenizer))
            except UserError as error:
                problems.append(str(error))
        found = [one for one in tried if len(one.tokens) <= room]
        if len(found) >= limit or count >= len(tasks):
            break
        count *= 2
    if not tried:
        raise UserError(problems[0])
    if problems:
        warnings.warn(left_out(problems, len(tried) + len(problems), "prompt"), stacklevel=2)
    if not found:
        raise UserError(
            f"no prompt leaves room for {max_new_tokens} new tokens (tried: {len(tried)}), because the target runs "
            f"{longest_run} tokens at most; lower --max-new-tokens or give shorter prompts"
        )
    return Chosen(spread(found, limit), len(tried) - len(found))


def encode_task(task: Task, tokenizer: PreTrainedTokenizerBase) -> TaskPrompt:
    """Tokenize a task. Messages go through the chat template (`clover.templates`).

    UserError if the chat template refuses the messages, or no token is left.
    """
    if task.messages:
        try:
            tokens = encode_prompt(tokenizer, task.messages, task.tools)
        except UserError as error:
            raise UserError(f"{task.where}: {error}") from error
    else:
        tokens = _encode_plain(task.text, task.window, tokenizer)
    if not tokens:
        raise UserError(f"{task.where}: the tokenizer gives no token for the prompt")
    return TaskPrompt(task.group, tuple(tokens), task.where)


def _encode_plain(text: str, window: Window, tokenizer: Any) -> list[int]:
    """Return the tokens of the window, after the special tokens that the tokenizer puts before every text."""
    whole = encode_text(tokenizer, text)
    bare = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    places = (at for at in range(len(whole) - len(bare), 0, -1) if whole[at : at + len(bare)] == bare)
    return whole[: next(places, 0)] + bare[slice(*window)]


def _read_file(path: Path) -> Iterator[Task]:
    suffix = path.suffix.lower()
    if suffix in _RECORD_FILES:
        yield from _read_records(path)
    elif suffix == ".txt":
        for number, line in enumerate(_read_text(path).split("\n"), start=1):
            if line.strip():
                yield Task(path.stem, f"{path}, line {number}", text=line)
    else:
        text = _read_text(path)
        if text.strip():
            yield from cut_text(text, str(path))


def _read_records(path: Path) -> Iterator[Task]:
    rows, problems, number, where = open_rows(path), list[str](), 0, ""
    for row in range(rows.count):
        try:
            fields, where = rows.read(row)
            if not isinstance(fields, dict) or not isinstance(fields.get("prompts"), list):
                fields = [_parse_task(fields, path.stem, where)]
        except UserError as error:
            fields = [str(error)]
        for task in fields if isinstance(fields, list) else _read_lists(fields, path.stem, where):
            number += 1
            if isinstance(task, str):
                problems.append(task)
            else:
                yield task
    if problems and len(problems) == number:
        raise UserError(problems[0])
    if problems:
        warnings.warn(left_out(problems, number, "prompt"), stacklevel=2)


def _read_lists(fields: dict[str, Any], stem: str, where: str) -> Iterator[Task | str]:
    """Yield the prompts of an object of lists; for one that cannot be used, yield what is wrong with it."""
    for name in _LISTS:
        texts = fields.get(name, [])
        for number, text in enumerate(texts if isinstance(texts, list) else [None], start=1):
            place = f"{where}: {name}, text {number}"
            if isinstance(text, str) and text.strip():
                yield Task(stem if name == "prompts" else name, place, text=text)
            else:
                yield f"{place} must be a text that is not empty"


def _parse_task(fields: Any, stem: str, where: str) -> Task:
    record = parse_record(fields, where)
    group = (_group(fields, where) if "turns" in fields else "") or stem
    if record.messages:
        return Task(group, where, messages=_first_turn(record.messages, where), tools=record.tools)
    if not (record.prompt or record.completion).strip():
        raise UserError(f"{where}: the prompt is empty")
    if record.prompt:
        return Task(group, where, text=record.prompt)
    return Task(group, where, text=record.completion[:_MOST_CHARACTERS], window=(0, PROMPT_TOKENS))


def _group(fields: dict[str, Any], where: str) -> str:
    category = fields.get("category") or ""
    if not isinstance(category, str) or not category.isprintable() or len(category) > 100:
        raise UserError(f"{where}: category must be a short name, not {str(category)[:40]!r}")
    return "mt_bench" if category in _MT_BENCH else category


def _first_turn(messages: Sequence[Message], where: str) -> tuple[Message, ...]:
    """Return the conversation up to the first words of the user."""
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    if not users or not message_text(messages[users[0]]).strip():
        raise UserError(f"{where}: the user says nothing to answer")
    return tuple(messages[: users[0] + 1])


def cut_text(text: str, name: str) -> Iterator[Task]:
    """Cut a text into prompts, one per 2,000 characters or so. Each ends after a whole line if lines are short."""
    ends = [(text.find("\n", at, at + _STRIDE) + 1) or at for at in range(_STRIDE, len(text), _STRIDE)]
    line, counted = 1, 0
    for end in ends or [(len(text) + 1) // 2]:
        line, counted = line + text.count("\n", counted, end), end
        start = max(0, end - _MOST_CHARACTERS)
        # A line break at the end would be a token of its own, which is rare in the middle of a text.
        before = text[start:end].rstrip("\n")
        if before.strip():
            yield Task(Path(name).stem, f"{name}, line {line}", text=before, window=(-PROMPT_TOKENS, None))


def _read_text(path: Path) -> str:
    return plain_text(read_text(path, _MAX_BYTES), str(path))
