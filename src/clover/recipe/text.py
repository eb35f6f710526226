"""Training text of the drafts: what the target writes itself, and windows of the corpus beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from clover.data import Sample
from clover.files import write_text
from clover.recipe.corpus import Document, prompts_from
from clover.regenerate import RegenerateConfig, read_regenerated, regenerate
from clover.report.progress import Progress
from clover.target import TargetModel

WINDOW = 256  # tokens of a text that a draft is trained on
_OPENING, _OPENINGS, _TOGETHER = 48, 6000, 64  # tokens of an opening, openings, texts written at once


def write_texts(
    target: TargetModel, documents: Sequence[Document], work: Path, minutes: float, progress: Progress
) -> list[Sample]:
    """Let the target continue each opening of a training file twice, greedily and by sampling.

    Args:
        work: the texts go to `written.jsonl` there; an interrupted run goes on with it.
        minutes: stop here with what was written.
    """
    tokenizer = target.tokenizer
    assert tokenizer is not None
    openings = [tokenizer(prompt)["input_ids"][-_OPENING:] for prompt in prompts_from(documents, _OPENINGS)]
    even = len(openings) // 2 * 2  # temperatures alternate, so the second time starts one text later
    samples = [_opening(tokens) for tokens in [*openings[:even], *openings[1:even], *openings[:1]]]
    config = RegenerateConfig(
        max_length=WINDOW, prompt_tokens=_OPENING, batch_size=_TOGETHER, max_minutes=minutes
    )
    path, done = work / "written.jsonl", work / "written.done"
    if done.exists():
        return read_regenerated(path)
    progress.begin(len(samples))
    texts = regenerate(target, samples, config, path, lambda written, _: progress.reach(written))
    write_text(done, f"{len(texts)} texts\n")
    return texts


def corpus_windows(stream: Tensor, tokens: int) -> list[Sample]:
    """About `tokens` tokens of the corpus (Short [T]) in windows that start anywhere; all of each is learnt."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(len(stream) - WINDOW, (tokens // WINDOW,), generator=generator).tolist()
    learnt = torch.ones(WINDOW, dtype=torch.bool)
    return [Sample(stream[start : start + WINDOW].int(), learnt) for start in starts]


def learnt_tokens(samples: Sequence[Sample]) -> int:
    """Tokens of all texts that are learnt."""
    return sum(int(sample.loss_mask.sum()) for sample in samples)


def _opening(tokens: list[int]) -> Sample:
    """A text whose opening is given and whose one learnt token stands for all that the target will write."""
    learnt = torch.zeros(len(tokens) + 1, dtype=torch.bool)
    learnt[-1] = True
    return Sample(torch.tensor([*tokens, 0], dtype=torch.int32), learnt)
