"""Prompts that the target writes itself, so that a draft can be made for a model without any data.

A chat model that is given the opening of a user's turn writes what a user might ask (Magpie: Xu and others,
2406.08464). So its prompts are of the kinds that it was trained to answer, and nobody's licence is on them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from clover.data.chat import encode_user_opening
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.files import append_lines, write_text
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.validation import read_lines

SOURCE = "written by the target itself"
_LONGEST = 128  # tokens of a prompt; a longer text is mostly no question
_MAX_BYTES = 2**30  # of the file beside
_TRIES = 4  # texts that are written per prompt wanted, at most


@dataclass(frozen=True)
class _Turn:
    """What the target wrote with a seed: a whole turn of a user, or "" if it did not end."""

    seed: int
    text: str


def write_own_prompts(
    target: TargetModel,
    count: int,
    batch_size: int,
    path: Path,
    progress: Callable[[int], None] = lambda prompts: None,
) -> None:
    """Write `count` different prompts into `path`, as rows of conversations; fewer if no more come.

    They are those of the lowest seeds, whatever ends first. What ends goes into a file beside it at once, from which a
    run that was stopped goes on and writes the same.

    Args:
        progress: called with the number of prompts so far, at first and with each one.

    Raises:
        UserError: the target has no chat template, or not one of its texts ends as a user's turn does.
    """
    opening = tuple(encode_user_opening(target.require_tokenizer()))
    partial = path.with_suffix(".partial")
    turns = read_lines(partial, _Turn, _MAX_BYTES, mend=True) if partial.exists() else []
    ended = {turn.seed: turn.text for turn in turns}
    chosen, seeds = _chosen(ended, count), [seed for seed in range(_TRIES * count) if seed not in ended]
    progress(len(chosen))
    for turn in _write(target, opening, seeds, batch_size) if len(chosen) < count else ():
        append_lines(partial, [turn])
        ended[turn.seed], before = turn.text, len(chosen)
        chosen = _chosen(ended, count)
        for number in range(before, len(chosen)):
            progress(number + 1)
        if len(chosen) == count:
            break
    if not chosen:
        raise UserError(
            f"the target asks nothing: none of {_TRIES * count} user turns ended; give --prompts FILE"
        )
    rows = [{"messages": [{"role": "user", "content": text}], "source": SOURCE} for text in chosen]
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    partial.unlink(missing_ok=True)


def _chosen(ended: Mapping[int, str], count: int) -> list[str]:
    """The first different prompts, in the order of the seeds up to the first one that has not ended."""
    found = dict[str, None]()
    for seed in takewhile(ended.__contains__, range(_TRIES * count)):
        if ended[seed]:
            found[ended[seed]] = None
    return list(found)[:count]


def _write(
    target: TargetModel, opening: tuple[int, ...], seeds: Iterable[int], batch_size: int
) -> Iterator[_Turn]:
    """What the target writes at temperature 1 with each seed, as it ends."""
    decoding, waiting = Engine(target).open(batch_size), iter(seeds)
    limit = min(_LONGEST, target.longest_run - len(opening))
    running: dict[int, int] = {}  # seeds
    while True:
        for seed in islice(waiting, batch_size - len(running)):
            running[decoding.add(Request(opening, limit, SamplingParams(temperature=1.0, seed=seed)))] = seed
        if not running:
            return
        for event in decoding.step():
            if (generation := event.generation) is not None:
                ended = generation.tokens[-1] in target.eos_token_ids
                text = target.require_tokenizer().decode(list(generation.tokens[:-1])) if ended else ""
                yield _Turn(running.pop(event.index), str(text).strip())
