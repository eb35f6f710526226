"""Training text of drafts: what the target writes after openings of source files, and windows of the corpus."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clover.data import FileTexts, Record, Sample
from clover.errors import UserError
from clover.target import TargetModel
from experiments.recipes.corpus import Document, prompts_from


def openings(tokenizer: Any, documents: Sequence[Document], tokens: int, most: int) -> list[Record]:
    """Return the last `tokens` tokens of openings of code, as prompts that the target continues.

    Their number is odd: the target writes every second text greedily, so in a second turn each meets the other way.

    Raises:
        UserError: the documents hold none.
    """
    found = [tokenizer(text)["input_ids"][-tokens:] for text in prompts_from(documents, most)]
    if not found:
        raise UserError("there is no source code on this machine to take openings from; name files")
    chosen = found[: len(found) - 1 + len(found) % 2]
    return [Record(f"opening {number}", prompt=tokenizer.decode(one)) for number, one in enumerate(chosen, 1)]


def read_texts(target: TargetModel, files: Sequence[Path]) -> FileTexts:
    """Open training texts for a target."""
    return FileTexts(files, target.require_tokenizer(), target.eos_token_ids, target.vocab_size)


def corpus_windows(stream: Tensor, tokens: int, window: int) -> list[Sample]:
    """About `tokens` tokens of the corpus (Short [T]) in windows that start anywhere; all of each is learnt."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(len(stream) - window, (tokens // window,), generator=generator).tolist()
    return [
        Sample(stream[start : start + window].int(), torch.ones(window, dtype=torch.bool)) for start in starts
    ]


def learnt_tokens(samples: Iterable[Sample]) -> int:
    """Return the tokens of all texts that are learnt."""
    return sum(int(sample.loss_mask.sum()) for sample in samples)
