"""Texts of a comparison: what the drafts learn from, and the prompts of each task."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path

from clover import assets
from clover.compare.suite import PROMPTS, Task, TextOptions
from clover.data import FileTexts, Sample
from clover.data.slices import cut_python
from clover.data.tasks import PROMPT_TOKENS, encode_task, read_tasks
from clover.errors import UserError
from clover.evaluate.accuracy import as_sample
from clover.files import read_json
from clover.recipe.corpus import Corpus, Document, prompts_from, read_corpus
from clover.regenerate import RegenerateConfig, read_regenerated, regenerate
from clover.target import TargetModel

FEWEST_NEW_TOKENS = 16  # a prompt that leaves less room in the context is left out
_CHARACTERS = 12 * PROMPT_TOKENS  # before a cut: more than the tokens of a prompt have


def write_text(
    target: TargetModel,
    options: TextOptions,
    path: Path,
    progress: Callable[[int, int], None] = lambda texts, tokens: None,
) -> list[Sample]:
    """Make the training text: read the files, or let the target write into `path`, going on from what it holds."""
    samples = _samples(target, options)
    if not options.write:
        return samples
    config = RegenerateConfig(
        max_length=options.max_length,
        prompt_tokens=options.prompt_tokens,
        temperatures=options.temperatures,
        batch_size=options.batch_size,
        max_minutes=options.minutes,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    return regenerate(target, samples, config, path, progress)


def read_text(target: TargetModel, options: TextOptions, path: Path) -> list[Sample]:
    """The training text that `write_text` has finished."""
    return read_regenerated(path) if options.write else _samples(target, options)


def task_prompts(target: TargetModel, task: Task, count: int, at_least: int = 1) -> list[tuple[int, ...]]:
    """Different prompts of a task as token ids, at most `count`; those that nearly fill the context are left out.

    Raises:
        UserError: the task has fewer than `at_least` prompts that can be used.
    """
    tokenizer = target.tokenizer
    assert tokenizer is not None
    longest = target.context_length - FEWEST_NEW_TOKENS
    if task.file is not None:
        tasks = (one for one in read_tasks([task.file]) if task.group in (None, one.group))
        found = (encode_task(one, tokenizer).tokens for one in tasks)
    else:
        found = (tuple(tokenizer(text)["input_ids"][-PROMPT_TOKENS:]) for text in _kind_texts(task.kind))
    prompts: dict[tuple[int, ...], None] = {}
    for tokens in found:
        if 0 < len(tokens) <= longest:
            prompts[tokens] = None
        if len(prompts) == count:
            break
    if len(prompts) < at_least:
        raise UserError(
            f"task {task.name!r} has {len(prompts)} different prompts of at most {longest} tokens, and {at_least} are "
            "needed, one for each place of the largest batch"
        )
    return list(prompts)


@cache
def _corpus() -> Corpus:
    return read_corpus()


def _kind_texts(kind: str | None) -> Iterator[str]:
    """Openings whose continuation is of `kind`, from as many held-out files as possible first.

    No line break at the end: see `clover.recipe.corpus.prompts_from`.
    """
    if kind == PROMPTS:
        yield from read_json(assets.HELD_OUT_PROMPTS)["prompts"]
        return
    by_file = [_cuts(document)[str(kind)] for document in _corpus().held_out]
    for turn in zip_longest(*by_file):
        yield from (text for text in turn if text)


@cache
def _cuts(document: Document) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    try:
        cuts = cut_python(document.text, document.name)
    except UserError:  # written for another version of Python
        return found
    for cut in cuts:
        text = document.text[max(0, cut.end - _CHARACTERS) : cut.end].rstrip("\n")
        found[cut.kind].append(text)
    return found


def _samples(target: TargetModel, options: TextOptions) -> list[Sample]:
    tokenizer = target.tokenizer
    assert tokenizer is not None
    if options.files:
        texts = FileTexts(options.files, tokenizer, target.eos_token_ids, stand_ins=options.write)
        return list(islice(texts, options.texts))
    openings = prompts_from(_corpus().train, options.texts)
    found = [tokenizer(opening)["input_ids"][-options.prompt_tokens :] for opening in openings]
    if not found:
        raise UserError("there is no source code on this machine to take openings from; name files in [text]")
    chooser = random.Random(0)
    more = [chooser.choice(found) for _ in range(options.texts - len(found))]
    return [
        as_sample(tokens, [0]) for tokens in [*found, *more]
    ]  # one learnt token stands for all that is written
