"""Prompts that the target writes itself, so that a draft can be made for a model without any data.

A chat model that is given the opening of a user's turn writes what a user might ask (Magpie: Xu and others,
2406.08464). So its prompts are of the kinds that it was trained to answer, and nobody's licence is on them.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from clover.data.chat import encode_user_opening
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.files import write_text
from clover.sampling import SamplingParams
from clover.target import TargetModel

SOURCE = "written by the target itself"
_LONGEST = 128  # tokens of a prompt; what does not end before is mostly no question
_TRIES = 4  # texts that are written per prompt wanted, at most


def write_own_prompts(
    target: TargetModel,
    count: int,
    batch_size: int,
    path: Path,
    progress: Callable[[int], None] = lambda prompts: None,
) -> None:
    """Write `count` different prompts into `path`, as rows of conversations; fewer if no more come.

    Args:
        progress: called with the number of prompts so far.

    Raises:
        UserError: the target has no chat template, or not one of its texts ends as a user's turn does.
    """
    opening = tuple(encode_user_opening(_tokenizer(target)))
    found: dict[str, None] = {}
    for text in _write(target, opening, _TRIES * count, batch_size):
        if text and text not in found:
            found[text] = None
            progress(len(found))
        if len(found) == count:
            break
    if not found:
        raise UserError(
            f"the target asks nothing: none of {_TRIES * count} user turns ended; give --prompts FILE"
        )
    rows = [{"messages": [{"role": "user", "content": text}], "source": SOURCE} for text in found]
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write(target: TargetModel, opening: tuple[int, ...], count: int, batch_size: int) -> Iterator[str]:
    """The turns that ended by themselves, at temperature 1 with seeds from 0 on."""
    decoding = Engine(target).open(batch_size)
    limit = min(_LONGEST, target.context_length - len(opening))
    begun = running = 0
    while begun < count or running:
        while begun < count and running < batch_size:
            params = SamplingParams(temperature=1.0, seed=begun)
            decoding.add(Request(opening, limit, params))
            begun, running = begun + 1, running + 1
        for event in decoding.step():
            if (generation := event.generation) is not None:
                running -= 1
                if generation.tokens[-1] in target.eos_token_ids:
                    yield str(_tokenizer(target).decode(list(generation.tokens[:-1]))).strip()


def _tokenizer(target: TargetModel) -> PreTrainedTokenizerBase:
    if target.tokenizer is None:
        raise UserError("the target has no tokenizer, which prompts need")
    return target.tokenizer
