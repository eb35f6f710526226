"""From a suite to the list of its cells: each is run once and leaves one line of results.

A cell's key stands for everything that decides its result, so that a suite that has changed runs only what is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from clover.compare.suite import Budget, Suite, System, Task, TextOptions, TrainingOptions, digest
from clover.drafts.config import all_options
from clover.drafts.loading import SYSTEMS
from clover.errors import UserError
from clover.files import explain
from clover.losses import LossConfig

PLAIN = "plain"


@dataclass(frozen=True)
class Method:
    """What decodes, as results name it; a draft is named by a method without a tree.

    Args:
        system: the system's name in the suite, or "plain".
        tree: its token tree.
        loss, budget, learning_rate, seed: how the draft was trained; None where there is nothing to train.
    """

    system: str
    tree: str | None = None
    loss: str | None = None
    budget: str | None = None
    learning_rate: float | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Draft:
    """A draft to be trained, or one that needs no training (`loss` and `budget` are None); see `System`."""

    method: Method
    kind: str
    options: dict[str, Any]
    trees: tuple[str, ...]
    against: str | None = None
    loss: LossConfig | None = None
    budget: Budget | None = None

    @property
    def trained(self) -> bool:
        """Whether it has to be trained."""
        return self.loss is not None

    def methods(self) -> list[Method]:
        """The draft with each of its trees."""
        return [Method(**{**asdict(self.method), "tree": tree}) for tree in self.trees]

    def identity(self) -> dict[str, Any]:
        """What decides its weights, but for the text and the batches; the names are left out, defaults written out."""
        return {
            "system": self.kind,
            "options": all_options(SYSTEMS[self.kind].config_class, self.options),
            "loss": self.loss and asdict(self.loss),
            "budget": self.budget and [self.budget.steps, self.budget.minutes],
            "learning_rate": self.method.learning_rate,
            "seed": self.method.seed,
        }


@dataclass(frozen=True)
class Place:
    """On what everything runs: the target and how it computes."""

    target: str
    device: str
    dtype: str


@dataclass(frozen=True)
class Cell:
    """One piece of work with one line of results.

    Args:
        place: on what it runs.
        kind: "text", "training", "accuracy" or "measuring".
        label: what it is called while it runs.
        config: what decides its result, as JSON values.
    """

    place: Place
    kind: str
    label: str
    config: dict[str, Any] = field(repr=False)

    @property
    def key(self) -> str:
        """12 hexadecimal digits that stand for this cell in the results."""
        return digest([self.kind, asdict(self.place), self.config])


@dataclass(frozen=True)
class TextCell(Cell):
    """The target writes what the drafts learn from."""

    options: TextOptions


@dataclass(frozen=True)
class TrainingCell(Cell):
    """One draft is trained.

    Args:
        weights: 12 hexadecimal digits that stand for everything that decides the draft's weights.
    """

    draft: Draft
    options: TrainingOptions
    weights: str


@dataclass(frozen=True)
class AccuracyCell(Cell):
    """The heads of one draft are measured on one task."""

    draft: Draft
    task: Task


@dataclass(frozen=True)
class MeasuringCell(Cell):
    """Plain decoding and all drafts of one budget and seed decode one task in turn."""

    drafts: tuple[Draft, ...]
    task: Task
    batch_size: int
    temperature: float


@dataclass(frozen=True)
class Plan:
    """All cells of a suite in the order in which they run, and where each trained draft's weights are.

    Args:
        weights: of each trained draft, see `TrainingCell`.
    """

    cells: tuple[Cell, ...]
    weights: dict[Method, str]


def make_plan(suite: Suite, place: Place) -> Plan:
    """The cells of `suite`: text, trainings, measurements, accuracies.

    Raises:
        UserError: the suite names a file that cannot be read.
    """
    drafts = [draft for system in suite.systems for draft in _drafts(suite, system)]
    text = _text_cell(suite, place)
    training = {d.method: _training_cell(suite, place, d, text.key) for d in drafts if d.trained}
    weights = {method: cell.weights for method, cell in training.items()}
    tasks = [(task, _task_identity(task)) for task in suite.tasks]
    measuring = [
        _measuring_cell(suite, place, group, task, weights, where)
        for group in _groups(drafts)
        for task, *where in (
            (task, identity, size, temperature)
            for task, identity in tasks
            for size, temperature in product(suite.measuring.batch_sizes, suite.measuring.temperatures)
        )
    ]
    accuracy = [
        _accuracy_cell(suite, place, draft, task, weights[draft.method], identity)
        for draft in drafts
        if draft.trained and suite.measuring.accuracy
        for task, identity in tasks
    ]
    texts = [text] if training else []
    return Plan((*texts, *training.values(), *measuring, *accuracy), weights)


def _drafts(suite: Suite, system: System) -> list[Draft]:
    """A system at every loss, budget, learning rate and seed; once if it is not trained."""
    kind, training = SYSTEMS[system.system], suite.training
    trees = suite.measuring.trees if system.trees is None else system.trees
    if not kind.trainable:
        return [Draft(Method(system.name), system.system, system.options, trees, system.against)]
    combinations = (
        (budget, loss, rate, seed)
        for budget in training.budgets
        for loss in (system.losses or budget.losses or training.losses)
        for rate in (system.learning_rates or training.learning_rates)
        for seed in training.seeds
    )
    return [
        Draft(
            Method(system.name, None, loss, budget.name, rate, seed),
            system.system,
            system.options,
            trees,
            system.against,
            suite.loss(loss, kind.paper_loss),
            budget,
        )
        for budget, loss, rate, seed in combinations
    ]


def _groups(drafts: Sequence[Draft]) -> list[list[Draft]]:
    """Drafts that decode: those of equal budget and seed, each group with those that need no training."""
    drafts = [draft for draft in drafts if draft.trees]
    pairs = dict.fromkeys((d.method.budget, d.method.seed) for d in drafts if d.trained)
    free = [draft for draft in drafts if not draft.trained]
    if not pairs:
        return [free] if free else []
    return [[d for d in drafts if (d.method.budget, d.method.seed) == pair] + free for pair in pairs]


def _text_cell(suite: Suite, place: Place) -> TextCell:
    options = suite.text
    config = asdict(options) | {"files": [_file_digest(file) for file in options.files]}
    return TextCell(place, "text", "training text", config, options)


def _training_cell(suite: Suite, place: Place, draft: Draft, text: str) -> TrainingCell:
    options = suite.training
    shared = {
        "max_length": options.max_length,
        "batch_tokens": options.batch_tokens,
        "optimizer": options.optimizer,
        "dtype": options.dtype,
    }
    decided = {"text": text, **shared, **draft.identity()}
    config = {"method": asdict(draft.method), **decided}
    weights = digest([asdict(place), decided])
    return TrainingCell(place, "training", f"train {describe(draft.method)}", config, draft, options, weights)


def _measuring_cell(
    suite: Suite, place: Place, drafts: list[Draft], task: Task, weights: dict[Method, str], where: list[Any]
) -> MeasuringCell:
    identity, size, temperature = where
    options = suite.measuring
    config = {
        "drafts": [
            {"method": asdict(d.method), "weights": weights.get(d.method) or d.identity(), "trees": d.trees}
            for d in drafts
        ],
        "task": [task.name, identity],
        "batch_size": size,
        "temperature": temperature,
        "rounds": options.rounds,
        "max_new_tokens": options.max_new_tokens,
        "prompts": options.prompts,
    }
    trained = drafts[0].method
    equal = f", {trained.budget}, seed {trained.seed}" if trained.budget else ""
    label = f"measure {task.name}, batch {size}, temperature {temperature:g}{equal}"
    return MeasuringCell(place, "measuring", label, config, tuple(drafts), task, size, temperature)


def _accuracy_cell(
    suite: Suite, place: Place, draft: Draft, task: Task, weights: str, identity: str
) -> AccuracyCell:
    options = suite.measuring
    limits = {"prompts": options.prompts, "max_new_tokens": options.max_new_tokens}
    config = {"method": asdict(draft.method), "weights": weights, "task": [task.name, identity], **limits}
    label = f"accuracy of {describe(draft.method)} on {task.name}"
    return AccuracyCell(place, "accuracy", label, config, draft, task)


def describe(method: Method) -> str:
    """A method in one line.

    >>> describe(Method("medusa", "chain:3", "paper", "200 steps", 1e-3, 0))
    'medusa, chain:3, paper, 200 steps, rate 0.001, seed 0'
    """
    rate = None if method.learning_rate is None else f"rate {method.learning_rate:g}"
    seed = None if method.seed is None else f"seed {method.seed}"
    return ", ".join(
        part for part in (method.system, method.tree, method.loss, method.budget, rate, seed) if part
    )


def _task_identity(task: Task) -> str:
    return f"kind {task.kind}" if task.file is None else f"file {_file_digest(task.file)} {task.group or ''}"


def _file_digest(name: str) -> str:
    whole = hashlib.blake2b(digest_size=6)
    try:
        with Path(name).open("rb") as file:
            while block := file.read(1 << 20):
                whole.update(block)
    except OSError as error:
        raise UserError(f"cannot read {name}: {explain(error.errno or 0)}") from error
    return whole.hexdigest()
