"""Train one draft of a comparison, going on where an interrupted run stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from clover.compare.plan import Draft
from clover.compare.results import Trained
from clover.compare.suite import Suite
from clover.data import Sample
from clover.drafts import DraftModel, load_draft
from clover.drafts.loading import SYSTEMS
from clover.errors import UserError
from clover.files import read_json
from clover.target import TargetModel
from clover.train import TrainConfig, checkpoint_path, train

_SAVE_EVERY_MINUTES = 2.0


def train_draft(
    target: TargetModel, suite: Suite, draft: Draft, samples: Sequence[Sample], folder: Path, console: Console
) -> Trained:
    """Train the draft into `folder`, unless it is there already.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came; the next call goes on from the checkpoint.
        UserError: it cannot be trained; names the draft.
    """
    config = _config(suite, draft, folder)
    if not folder.exists():
        resume = checkpoint_path(config).exists()
        model = new_draft(target, draft)
        try:
            result = train(
                config, target, samples, model, resume=resume, overwrite=not resume, console=console
            )
        except UserError as error:
            raise UserError(f"{draft.method.words}: {error}") from error
        if not result.finished:
            raise KeyboardInterrupt
    return _read_trained(draft, folder)


def new_draft(target: TargetModel, draft: Draft) -> DraftModel:
    """A draft with its starting values, which the seed decides.

    Raises:
        UserError: the options do not fit; names the system.
    """
    torch.manual_seed(draft.method.seed or 0)
    try:
        return SYSTEMS[draft.system.system].from_target(target, **draft.system.options).eval()
    except (UserError, TypeError) as error:
        raise UserError(f"system {draft.method.system!r}: {error}") from error


def ready_draft(target: TargetModel, draft: Draft, folder: Path) -> DraftModel:
    """A draft to decode with: the trained one in `folder`, or a new one where there is nothing to train."""
    return new_draft(target, draft) if draft.loss is None else load_draft(folder, target)


def _config(suite: Suite, draft: Draft, folder: Path) -> TrainConfig:
    options = suite.training
    assert draft.loss is not None and draft.budget is not None and draft.method.learning_rate is not None
    return TrainConfig(
        output=str(folder),
        target=suite.target,
        system=draft.system.system,
        draft=draft.system.options,
        max_length=options.max_length,
        batch_tokens=options.batch_tokens,
        max_steps=draft.budget.steps,
        max_minutes=draft.budget.minutes,
        optimizer=options.optimizer,
        lr=draft.method.learning_rate,
        dtype=options.dtype,
        seed=draft.method.seed or 0,
        save_every_minutes=_SAVE_EVERY_MINUTES,
        loss=draft.loss,
    )


def _read_trained(draft: Draft, folder: Path) -> Trained:
    result = read_json(folder / "training_config.json")["result"]
    return Trained(
        method=draft.method,
        parameters=_count_parameters(folder),
        steps=result["steps"],
        tokens=result["tokens"],
        seconds=result["seconds"],
        loss=(result["validation"] or result["training"])["loss"],
        against=draft.system.against,
    )


def _count_parameters(folder: Path) -> int:
    """Numbers in the saved weights: a draft saves what is trained, and nothing of the target's."""
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
        total += sum(torch.Size(shape).numel() for shape in shapes)
    return total
