"""Prompts that the target writes itself, so that a draft can be made for a model without any data.

A chat model that is given the opening of a user's turn writes what a user might ask (Magpie: Xu and others,
2406.08464). So its prompts are of the kinds that it was trained to answer, and nobody's licence is on them.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from clover.data.chat import encode_user_opening
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.files import append_lines, read_lines, write_text
from clover.sampling import SamplingParams
from clover.target import TargetModel

SOURCE = "written by the target itself"
_LONGEST = 128  # tokens of a prompt; what does not end before is mostly no question
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

    What ends goes into a file beside it at once, from which a run that was stopped goes on.

    Args:
        progress: called with the number of prompts so far, at first and with each one.

    Raises:
        UserError: the target has no chat template, or not one of its texts ends as a user's turn does.
    """
    opening = tuple(encode_user_opening(_tokenizer(target)))
    partial = path.with_suffix(".partial")
    turns = read_lines(partial, _Turn, _MAX_BYTES, mend=True) if partial.exists() else []
    seeds = sorted(set(range(_TRIES * count)) - {turn.seed for turn in turns})
    found = {turn.text for turn in turns} - {""}
    progress(len(found))
    for turn in _write(target, opening, seeds, batch_size) if len(found) < count else ():
        append_lines(partial, [turn])
        turns.append(turn)
        if turn.text and turn.text not in found:
            found.add(turn.text)
            progress(len(found))
        if len(found) == count:
            break
    if not found:
        raise UserError(
            f"the target asks nothing: none of {_TRIES * count} user turns ended; give --prompts FILE"
        )
    in_order = dict.fromkeys(turn.text for turn in sorted(turns, key=lambda turn: turn.seed) if turn.text)
    rows = [{"messages": [{"role": "user", "content": text}], "source": SOURCE} for text in in_order]
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    partial.unlink(missing_ok=True)


def _write(
    target: TargetModel, opening: tuple[int, ...], seeds: Iterable[int], batch_size: int
) -> Iterator[_Turn]:
    """What the target writes at temperature 1 with each seed, as it ends."""
    decoding, waiting = Engine(target).open(batch_size), iter(seeds)
    limit = min(_LONGEST, target.context_length - len(opening))
    running: dict[int, int] = {}  # seeds
    while True:
        for seed in islice(waiting, batch_size - len(running)):
            running[decoding.add(Request(opening, limit, SamplingParams(temperature=1.0, seed=seed)))] = seed
        if not running:
            return
        for event in decoding.step():
            if (generation := event.generation) is not None:
                ended = generation.tokens[-1] in target.eos_token_ids
                text = _tokenizer(target).decode(list(generation.tokens[:-1])) if ended else ""
                yield _Turn(running.pop(event.index), str(text).strip())


def _tokenizer(target: TargetModel) -> PreTrainedTokenizerBase:
    if target.tokenizer is None:
        raise UserError("the target has no tokenizer, which prompts need")
    return target.tokenizer
