"""Texts of a comparison: what the drafts learn from, and the prompts of each task."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle, islice, zip_longest
from pathlib import Path

from clover.data import Record, Sample
from clover.data.tasks import Task, cut_text, encode_task, read_tasks, spaced
from clover.errors import UserError
from clover.target import TargetModel
from clover.write import WriteConfig, Writer
from experiments.compare.suite import SuiteTask, TrainingText
from experiments.recipes.corpus import read_corpus
from experiments.recipes.text import openings, read_texts

_corpus = cache(read_corpus)
FEWEST_NEW_TOKENS = 16  # a prompt that leaves less room in the context is left out


def training_text(
    target: TargetModel, options: TrainingText, path: Path, progress: Callable[[int, int], None]
) -> list[Sample]:
    """Let the target write the training text into `path`, as far as it is not there; return it."""
    config = WriteConfig(
        max_length=options.max_length,
        prompt_tokens=options.prompt_tokens,
        batch_size=options.batch_size,
        max_minutes=options.minutes,
    )
    Writer(target, config, path).write(islice(_prompts_to_answer(target, options), options.texts), progress)
    return list(read_texts(target, [path]))


def _prompts_to_answer(target: TargetModel, options: TrainingText) -> Iterator[Record]:
    if options.files:
        return read_texts(target, list(map(Path, options.files))).records()
    return cycle(openings(target.require_tokenizer(), _corpus().train, options.prompt_tokens, options.texts))


def task_prompts(
    target: TargetModel, task: SuiteTask, count: int, at_least: int = 1
) -> list[tuple[int, ...]]:
    """Different prompts of a task as token ids, at most `count`; those that nearly fill the context are left out.

    UserError if the task has fewer than `at_least` prompts that can be used.
    """
    longest = target.longest_run - FEWEST_NEW_TOKENS
    found = (encode_task(prompt, target.require_tokenizer()).tokens for prompt in _prompts(task, count))
    prompts: dict[tuple[int, ...], None] = {}
    for tokens in found:
        if len(tokens) <= longest:
            prompts[tokens] = None
        if len(prompts) == count:
            break
    if len(prompts) < at_least:
        raise UserError(
            f"task {task.name!r} has {len(prompts)} different prompts of at most {longest} tokens, and {at_least} are "
            "needed, one for each place of the largest batch"
        )
    return list(prompts)


def _prompts(task: SuiteTask, count: int) -> Iterator[Task]:
    """Yield those of a file, `count` evenly spaced ones first; of source code from as many files as possible."""
    if task.file is not None:
        found = [one for one in read_tasks([task.file]) if task.group in (None, one.group)]
        yield from (found[i] for i in spaced(len(found), count))
    else:
        by_file = [cut_text(one.text, one.name) for one in _corpus().held_out]
        yield from (cut for turn in zip_longest(*by_file) for cut in turn if cut is not None)
