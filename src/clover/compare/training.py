"""Train one draft of a comparison, going on where an interrupted run stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from clover.compare.plan import Draft, Method, TrainingCell
from clover.data import Sample
from clover.drafts import DraftModel, load_draft
from clover.drafts.loading import SYSTEMS
from clover.errors import UserError
from clover.files import read_json
from clover.target import TargetModel
from clover.train import TrainConfig, checkpoint_path, train

_CURVE_POINTS = 100
_SAVE_EVERY_MINUTES = 2.0


@dataclass(frozen=True)
class CurvePoint:
    """Where a training stood.

    Args:
        tokens, seconds: so far.
        loss: what this training minimises; losses of different names cannot be compared.
        accuracy: of each head, 0 … 1, on the batches since the point before.
    """

    tokens: int
    seconds: float
    loss: float
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Args:
        parameters: that were trained.
        steps, tokens, seconds: of the whole run; padding is not counted.
        loss, accuracy: on held-out texts; of the last batches where none were held out.
        curve: at most 100 points.
        options, loss_weights: the draft's options and the weights of its loss.
        against: name of the system that the ablation table compares this one with.
    """

    method: Method
    system: str
    parameters: int
    steps: int
    tokens: int
    seconds: float
    loss: float
    accuracy: tuple[float, ...]
    curve: tuple[CurvePoint, ...]
    options: dict[str, Any]
    loss_weights: dict[str, Any]
    against: str | None = None


def train_draft(
    target: TargetModel, cell: TrainingCell, samples: Sequence[Sample], folder: Path, console: Console
) -> Trained:
    """Train the draft into `folder`, unless it is there already.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came; the next call goes on from the checkpoint.
        UserError: it cannot be trained; names the draft.
    """
    config = _config(cell, folder)
    if not folder.exists():
        draft = new_draft(target, cell.draft)
        resume = checkpoint_path(config).exists()
        try:
            result = train(
                config, target, samples, draft, resume=resume, overwrite=not resume, console=console
            )
        except UserError as error:
            raise UserError(f"{cell.label}: {error}") from error
        if not result.finished:
            raise KeyboardInterrupt
    return _read_trained(cell.draft, folder)


def new_draft(target: TargetModel, draft: Draft) -> DraftModel:
    """A draft with its starting values, which the seed decides.

    Raises:
        UserError: the options do not fit; names the system.
    """
    torch.manual_seed(draft.method.seed or 0)
    try:
        return SYSTEMS[draft.kind].from_target(target, **draft.options).eval()
    except (UserError, TypeError) as error:
        raise UserError(f"system {draft.method.system!r}: {error}") from error


def ready_draft(target: TargetModel, draft: Draft, folder: Path) -> DraftModel:
    """A draft to decode with: the trained one in `folder`, or a new one where there is nothing to train."""
    return load_draft(folder, target) if draft.trained else new_draft(target, draft)


def _config(cell: TrainingCell, folder: Path) -> TrainConfig:
    draft, options = cell.draft, cell.options
    assert draft.loss is not None and draft.budget is not None and draft.method.learning_rate is not None
    return TrainConfig(
        output=str(folder),
        target=cell.place.target,
        system=draft.kind,
        draft=draft.options,
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
    measured = result["validation"] or result["training"]
    assert draft.loss is not None
    return Trained(
        method=draft.method,
        system=draft.kind,
        parameters=_count_parameters(folder),
        steps=result["steps"],
        tokens=result["tokens"],
        seconds=result["seconds"],
        loss=measured["loss"],
        accuracy=tuple(measured["accuracy"]),
        curve=_read_curve(folder / "training_log.jsonl"),
        options=draft.options,
        loss_weights=asdict(draft.loss),
        against=draft.against,
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


def _read_curve(log: Path) -> tuple[CurvePoint, ...]:
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    points = [
        CurvePoint(e["tokens"], e["seconds"], e["loss"], tuple(e["accuracy"]))
        for e in entries
        if "tokens" in e
    ]
    stride = max(1, -(-len(points) // _CURVE_POINTS))
    return tuple(points[::-1][::stride][::-1])  # the last one stays
