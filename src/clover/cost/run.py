"""`clover cost` from its options to the report."""

from __future__ import annotations

import time
from typing import Any

import torch
from rich.console import Console

from clover import assets
from clover.cost.breakeven import recorded_seconds
from clover.cost.options import CostOptions
from clover.cost.report import Found, make_report
from clover.cost.steps import TreeCost, measure_steps
from clover.drafts import DraftModel, load_draft
from clover.drafts.loading import trainable_system
from clover.errors import UserError
from clover.report.output import publish
from clover.report.progress import Progress
from clover.report.provenance import Provenance
from clover.target import TargetModel
from clover.tree import TreeShape
from clover.tune.round_robin import until
from clover.tune.texts import fill_batch, read_requests

_WANTED, _FEWEST = 80, 12  # steps of each tree: so many are wanted, so many are taken however late it is
_CHAINS = (1, 2, 4, 8)


def run_cost(
    options: CostOptions, console: Console | None = None, errors: Console | None = None
) -> list[TreeCost]:
    """Measure, print the tables, and write the JSON file.

    Args:
        options: what to measure.
        console: for the tables; standard output when left out.
        errors: for the progress; standard error when left out.

    Returns:
        the costs of each tree at each batch size.

    Raises:
        UserError: an option, a file or a model cannot be used.
    """
    options.check()
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        found = _measure(options, progress)
    publish(make_report(found), console, options.json)
    return found.costs


def _measure(options: CostOptions, progress: Progress) -> Found:
    target = TargetModel.load(
        options.target or str(assets.TARGET),
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    draft = _draft(options, target)
    training = None if options.draft is None else recorded_seconds(options.draft)
    if options.minutes is not None:
        training = 60 * options.minutes
    own_tree = draft.config.tree_shape.cut(draft.max_depth)
    chains = [TreeShape.chain(depth) for depth in _CHAINS if depth <= draft.max_depth]
    shapes = options.shapes or [*(shape for shape in chains if shape != own_tree), own_tree]
    requests = read_requests(options.prompts, target, max(options.batch_sizes), options.max_new_tokens)
    started, sizes, costs = time.monotonic(), options.batch_sizes, list[TreeCost]()
    progress.begin(len(sizes))
    for number, size in enumerate(sizes):
        told = progress.part(1.0, f"batch size {size}: plain steps and trees in turn")
        left = started + 60 * options.max_minutes - time.monotonic()
        enough = until(_WANTED, _FEWEST, left / (len(sizes) - number), told)
        batch = fill_batch(requests, size)
        costs += measure_steps(target, draft, shapes, batch, enough, options.seed)
    return Found(
        options=options,
        origin=Provenance.here(options.command, target.device, target.dtype),
        system=str(draft.config.model_type),
        parameters=sum(weight.numel() for weight in draft.parameters()),
        training_seconds=training,
        costs=costs,
    )


def _draft(options: CostOptions, target: TargetModel) -> DraftModel:
    """The draft that was named, or a new one with random weights: steps take as long with any."""
    if options.draft is not None:
        return load_draft(options.draft, target)
    torch.manual_seed(options.seed)
    draft = trainable_system(options.system).from_target(target)
    if options.draft_vocabulary is not None:
        if not 1 <= options.draft_vocabulary <= target.vocab_size:
            raise UserError(f"draft_vocabulary must be from 1 to the target's {target.vocab_size}")
        draft.reduce_vocabulary(torch.arange(options.draft_vocabulary))
    model: Any = draft
    return model.to(target.dtype).eval()
