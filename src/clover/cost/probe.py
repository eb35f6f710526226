"""Two short but complete trainings, the second twice as long, as a look at what a long one will bring."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from clover.cost.extrapolate import Point
from clover.cost.measuring import MeasuringOptions, PairTimes, measure_pair
from clover.cost.training import TrainingCost, read_cost
from clover.data import Sample, split_samples
from clover.drafts import load_draft
from clover.drafts.loading import trainable_system
from clover.errors import UserError
from clover.target import TargetModel
from clover.train import TrainConfig, TrainResult, train

HELD_OUT_SHARE = 0.1  # a probe is short of held-out texts sooner than of texts
_PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Probe:
    """What the two trainings found.

    Args:
        first, second: tokens and accuracy on held-out texts.
        times: of the second draft.
        cost: of the second training.
    """

    first: Point
    second: Point
    times: PairTimes
    cost: TrainingCost


def run_probe(
    target: TargetModel,
    samples: Sequence[Sample],
    config: TrainConfig,
    minutes: float,
    prompts: Sequence[tuple[int, ...]],
    options: MeasuringOptions,
    console: Console | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Probe:
    """Train for a third of `minutes`, then anew for twice as many steps, and measure. Nothing stays on the disk.

    Args:
        config: the options of the long training; its output and its bounds are not used.
        console, progress: where the trainings are shown, and what is told of the measuring.

    Raises:
        KeyboardInterrupt: a signal ended a training.
        UserError: see `train` and `measure_pair`; or no text could be held out.
    """
    with tempfile.TemporaryDirectory(prefix="clover-cost-") as work:
        short = replace(config, max_steps=None, max_minutes=minutes / 3, validation_share=HELD_OUT_SHARE)
        first = train_draft(target, samples, replace(short, output=f"{work}/first"), console)
        twice = replace(short, output=f"{work}/second", max_minutes=None, max_steps=2 * first.steps)
        second = train_draft(target, samples, twice, console)
        cost = read_cost(Path(twice.output))
        draft = load_draft(twice.output, target)
        times = measure_pair(target, draft, prompts, options, progress)
    return Probe(measured_point(first), measured_point(second), times, cost)


def train_draft(
    target: TargetModel, samples: Sequence[Sample], config: TrainConfig, console: Console | None = None
) -> TrainResult:
    """Train a draft from its starting values, as `clover train` does.

    Raises:
        KeyboardInterrupt: a signal ended the training.
        UserError: see `train`.
    """
    torch.manual_seed(config.seed)  # the starting values are drawn at random
    draft = trainable_system(config.system).from_target(target, **config.draft)
    result = train(config, target, samples, draft, console=console)
    if not result.finished:
        raise KeyboardInterrupt
    return result


def measured_point(result: TrainResult) -> Point:
    """Tokens of a training and the accuracy of its heads on held-out texts."""
    if result.validation is None:
        raise UserError("the texts are too few: none of them could be held out to measure on; give more")
    return Point(result.tokens, tuple(result.validation["accuracy"]))


def held_out_prompts(
    samples: Sequence[Sample], limit: int, longest: int, share: float = HELD_OUT_SHARE
) -> list[tuple[int, ...]]:
    """Openings of texts that a training does not train on.

    Of a conversation the turns up to the first answer, of a plain text the first half, at most 64 tokens.

    Args:
        limit: prompts at most.
        longest: tokens of a prompt at most; longer ones are left out.
        share: of the texts that the training holds out.
    """
    prompts: list[tuple[int, ...]] = []
    for sample in split_samples(samples, share)[1]:
        start = int(sample.loss_mask.int().argmax()) or min(_PROMPT_TOKENS, len(sample.tokens) // 2)
        if 0 < start <= longest and len(prompts) < limit:
            prompts.append(tuple(sample.tokens[:start].tolist()))
    return prompts
