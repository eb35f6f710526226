"""Accuracy of a draft's heads on texts that the target writes after a task's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clover.compare.plan import Method
from clover.data import Batches, Sample
from clover.drafts import DraftModel
from clover.engine import Engine, Request
from clover.evaluate.accuracy import TOP, measure_heads
from clover.interleaved import decode
from clover.sampling import SamplingParams
from clover.target import TargetModel

_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Accuracy:
    """Shares, 0 … 1, per head and size of the top.

    Args:
        top: the sizes.
        positions: that count, per head.
        forced: the head's next token is within its top when it is forced with the text's tokens.
        chained: the same, and all heads before it were right with their first choice; of all positions.
    """

    method: Method
    task: str
    top: tuple[int, ...]
    positions: tuple[int, ...]
    forced: tuple[tuple[float, ...], ...]
    chained: tuple[tuple[float, ...], ...]


def written_texts(
    target: TargetModel, prompts: Sequence[tuple[int, ...]], max_new_tokens: int
) -> list[Sample]:
    """What the target writes after the prompts, greedily and sampled at temperature 1 in turn; only that is learnt."""
    requests = [
        Request(
            prompt,
            min(max_new_tokens, target.context_length - len(prompt)),
            SamplingParams(temperature=float(i % 2), seed=i),
        )
        for i, prompt in enumerate(prompts)
    ]
    texts = decode(Engine(target), requests).texts
    return [_sample(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]


def measure_accuracy(
    target: TargetModel, draft: DraftModel, method: Method, task: str, texts: Sequence[Sample]
) -> Accuracy:
    """Measure the heads on `texts`."""
    longest = max(len(text.tokens) for text in texts)
    batches = list(Batches(texts, longest, max(_BATCH_TOKENS, longest), seed=0).epoch())
    found = measure_heads(target, draft, batches).to_dict()
    return Accuracy(
        method=method,
        task=task,
        top=TOP,
        positions=tuple(found["positions"]),
        forced=tuple(map(tuple, found["forced"])),
        chained=tuple(map(tuple, found["chained_of_all"])),
    )


def _sample(prompt: Sequence[int], text: Sequence[int]) -> Sample:
    mask = torch.zeros(len(prompt) + len(text), dtype=torch.bool)
    mask[len(prompt) :] = True
    return Sample(torch.tensor([*prompt, *text], dtype=torch.int32), mask)
