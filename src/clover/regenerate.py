"""Let the target write the training text itself: a draft learns the model, not the data set.

Of a conversation every answer is written anew, each after the turns before it (with the new answers in them). Of a
plain text the opening is kept and the target continues it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field

from clover.data import Sample
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.files import read_text, validated_json, write_text, written
from clover.sampling import SamplingParams
from clover.target import TargetModel

_WEIGHTS_LOOKED_AT = 4096  # of each tensor
_MAX_BYTES = 2**33


@dataclass(frozen=True)
class RegenerateConfig:
    """How texts are written anew.

    Args:
        max_length: tokens of a text at most, its prompt included.
        prompt_tokens: tokens of a plain text that are kept as its opening, at most half of it.
        temperatures: text i is written at `temperatures[i % len]`: a draft should meet greedy and sampled text.
        batch_size: texts that are written together.
        max_minutes: stop here with what was written; None for all texts.
        seed: of the sampling.
    """

    max_length: int = 512
    prompt_tokens: int = 32
    temperatures: tuple[float, ...] = (0.0, 1.0)
    batch_size: int = 32
    max_minutes: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class _Written:
    """A line of the file."""

    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]
    loss_mask: list[Literal[0, 1]]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.loss_mask):
            raise ValueError("tokens and loss_mask differ in length")


def written_name(target: TargetModel, fingerprint: str, config: RegenerateConfig) -> str:
    """A hash of all that decides what is written: the target, the texts, and the options that change an answer.

    Of every tensor of the target only an even share is read, so that this takes seconds for a large model too.

    Args:
        fingerprint: of the texts.

    Returns:
        12 hexadecimal digits.
    """
    whole = hashlib.blake2b(digest_size=6)
    shape = {
        k: v for k, v in target.config.to_dict().items() if k not in ("_name_or_path", "transformers_version")
    }
    options = (config.max_length, config.prompt_tokens, config.temperatures, config.seed)
    whole.update(json.dumps([shape, target.eos_token_ids, options], sort_keys=True, default=str).encode())
    for name, tensor in target.model.state_dict().items():
        some = tensor.flatten()[:: max(1, tensor.numel() // _WEIGHTS_LOOKED_AT)]
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        whole.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    whole.update(fingerprint.encode())
    return whole.hexdigest()


def regenerate(
    target: TargetModel,
    samples: Iterable[Sample],
    config: RegenerateConfig,
    path: Path,
    progress: Callable[[int, int], None] = lambda texts, tokens: None,
) -> list[Sample]:
    """Write all texts anew, batch by batch, into the JSON-lines file `path`; goes on from what the file holds.

    Args:
        progress: called after each batch with (texts, tokens) written so far.
    """
    done = read_regenerated(path) if path.exists() else []
    started = time.monotonic()
    engine = Engine(target)
    tokens = sum(int(sample.loss_mask.sum()) for sample in done)
    to_do = islice(samples, len(done), None)
    while batch := list(islice(to_do, config.batch_size)):
        if config.max_minutes is not None and time.monotonic() - started > config.max_minutes * 60:
            break
        fresh = _rewrite(engine, batch, config, len(done))
        with written(path), path.open("a", encoding="utf-8") as file:
            for sample in fresh:
                row = {"tokens": sample.tokens.tolist(), "loss_mask": sample.loss_mask.int().tolist()}
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
        done += fresh
        tokens += sum(int(sample.loss_mask.sum()) for sample in fresh)
        progress(len(done), tokens)
    if not any(sample.loss_mask.any() for sample in done):
        raise UserError(
            "the target wrote nothing: every text ended at once; check its chat template and the data"
        )
    return done


def read_regenerated(path: Path) -> list[Sample]:
    """Samples of a file that `regenerate` wrote; a half-written last line is left out.

    Raises:
        UserError: the file cannot be read or is not of this kind.
    """
    samples = []
    lines = read_text(path, _MAX_BYTES).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if line.endswith("\n"):
            row = validated_json(
                _Written, line, f"{path}, line {number}, which --regenerate did not write so"
            )
            mask = torch.tensor(row.loss_mask, dtype=torch.bool)
            samples.append(Sample(torch.tensor(row.tokens, dtype=torch.int32), mask))
    if len(lines) != len(samples):
        write_text(path, "".join(lines[: len(samples)]))
    return samples


def _rewrite(engine: Engine, samples: Sequence[Sample], config: RegenerateConfig, first: int) -> list[Sample]:
    limit = min(config.max_length, engine.target.context_length)
    parts = [_parts(sample, config.prompt_tokens) for sample in samples]
    texts: list[list[int]] = [[] for _ in samples]
    masks: list[list[bool]] = [[] for _ in samples]
    writing = list(range(len(parts)))
    for turn in range(max(map(len, parts))):
        # A text ends before the first turn that does not fit: what comes later would answer what is not there.
        writing = [
            i for i in writing if turn < len(parts[i]) and len(texts[i]) + len(parts[i][turn]) + 1 < limit
        ]
        for i in writing:
            texts[i] += parts[i][turn]
            masks[i] += [False] * len(parts[i][turn])
        requests = [
            Request(
                prompt=tuple(texts[i]),
                max_new_tokens=limit - len(texts[i]),
                params=SamplingParams(
                    temperature=config.temperatures[(first + i) % len(config.temperatures)],
                    seed=config.seed + (first + i) * 64 + turn,
                ),
            )
            for i in writing
        ]
        for i, answer in zip(writing, _answers(engine, requests), strict=True):
            texts[i] += answer
            masks[i] += [True] * len(answer)
    return [
        Sample(torch.tensor(text, dtype=torch.int32), torch.tensor(mask, dtype=torch.bool))
        for text, mask in zip(texts, masks, strict=True)
    ]


def _answers(engine: Engine, requests: Sequence[Request]) -> Iterator[tuple[int, ...]]:
    answers = {e.index: e.generation.tokens for e in engine.run(requests) if e.generation is not None}
    return (answers[i] for i in range(len(requests)))


def _parts(sample: Sample, prompt_tokens: int) -> list[list[int]]:
    """What stands before each answer: the opening of a plain text, or what comes between the answers of a chat."""
    tokens, mask = sample.tokens.tolist(), sample.loss_mask.tolist()
    if all(mask):
        return [tokens[: max(1, min(prompt_tokens, len(tokens) // 2))]]
    parts: list[list[int]] = []
    given: list[int] = []
    for at, (token, learnt) in enumerate(zip(tokens, mask, strict=True)):
        if not learnt:
            given.append(token)
        elif at == 0 or not mask[at - 1]:
            parts.append(given)
            given = []
    return parts
