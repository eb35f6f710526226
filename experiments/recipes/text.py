"""Training text of drafts: what the target writes after openings of source files, and windows of the corpus."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clover.data import Sample
from clover.errors import UserError
from clover.files import raise_on_write_error
from clover.measure.accuracy import as_sample
from clover.regenerate import RegenerateConfig, read_regenerated, regenerate
from clover.target import TargetModel
from experiments.recipes.corpus import Document, prompts_from


def openings(tokenizer: Any, documents: Sequence[Document], tokens: int, most: int) -> list[Sample]:
    """The last `tokens` tokens of openings of code, as texts that the target is to go on with.

    Their number is odd: the target writes every second text greedily, so in a second turn each meets the other way.

    Raises:
        UserError: the documents hold none.
    """
    found = [tokenizer(text)["input_ids"][-tokens:] for text in prompts_from(documents, most)]
    if not found:
        raise UserError("there is no source code on this machine to take openings from; name files")
    # One learnt token stands for all that is written.
    return [as_sample(one, [0]) for one in found[: len(found) - 1 + len(found) % 2]]


def write_once(
    target: TargetModel,
    samples: Iterable[Sample],
    config: RegenerateConfig,
    path: Path,
    progress: Callable[[int, int], None],
) -> list[Sample]:
    """Let the target write texts into `path`, unless it did; an interrupted run goes on.

    Args:
        progress: called with (texts, tokens) written so far.
    """
    if not path.exists():
        partial = path.with_suffix(".partial")
        with raise_on_write_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        regenerate(target, samples, config, partial, progress)
        os.replace(partial, path)
    return read_regenerated(path)


def corpus_windows(stream: Tensor, tokens: int, window: int) -> list[Sample]:
    """About `tokens` tokens of the corpus (Short [T]) in windows that start anywhere; all of each is learnt."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(len(stream) - window, (tokens // window,), generator=generator).tolist()
    return [as_sample((), stream[start : start + window].tolist()) for start in starts]


def learnt_tokens(samples: Sequence[Sample]) -> int:
    """Tokens of all texts that are learnt."""
    return sum(int(sample.loss_mask.sum()) for sample in samples)
