"""From a suite to the list of its cells: each is run once and leaves one line of results.

A cell's key stands for everything that decides its result, so that a suite that has changed runs only what is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from clover.compare.suite import PLAIN, Budget, Suite, System, Task, digest
from clover.drafts.config import LossConfig, all_options
from clover.drafts.loading import SYSTEMS
from clover.errors import UserError
from clover.files import explain

Kind = Literal["text", "training", "measuring", "accuracy"]
_TOKENS_PER_SECOND = {"text": 500, "training": 3000, "measuring": 150, "accuracy": 200}  # of a small CPU


@dataclass(frozen=True)
class Method:
    """What decodes, as results name it; a draft is named by a method without a tree.

    Args:
        system: the system's name in the suite, or "plain".
        tree: its token tree.
        loss, budget, learning_rate, seed: how the draft was trained; None where there is nothing to train.
    """

    system: str = PLAIN
    tree: str | None = None
    loss: str | None = None
    budget: str | None = None
    learning_rate: float | None = None
    seed: int | None = None

    @property
    def words(self) -> str:
        """The method in one line.

        >>> Method("medusa", "chain:3", "paper", "200 steps", 1e-3, 0).words
        'medusa, chain:3, paper, 200 steps, rate 0.001, seed 0'
        """
        rate = None if self.learning_rate is None else f"rate {self.learning_rate:g}"
        seed = None if self.seed is None else f"seed {self.seed}"
        return ", ".join(filter(None, (self.system, self.tree, self.loss, self.budget, rate, seed)))


@dataclass(frozen=True)
class Draft:
    """A system of the suite trained in one way; `loss` and `budget` are None where there is nothing to train."""

    method: Method
    system: System
    trees: tuple[str, ...]
    loss: LossConfig | None = None
    budget: Budget | None = None

    @property
    def methods(self) -> list[Method]:
        """The draft with each of its trees."""
        return [replace(self.method, tree=tree) for tree in self.trees]

    def identity(self) -> dict[str, Any]:
        """What decides its weights, but for the text and the batches; the names are left out, defaults written out."""
        return {
            "system": self.system.system,
            "options": all_options(SYSTEMS[self.system.system].config_class, self.system.options),
            "loss": self.loss and asdict(self.loss),
            "budget": self.budget and self.budget.name,
            "learning_rate": self.method.learning_rate,
            "seed": self.method.seed,
        }


@dataclass(frozen=True)
class Cell:
    """One piece of work with one line of results.

    Args:
        label: what it is called while it runs.
        config: what decides its result, as JSON values.
        seconds: a first guess of how long it takes.
        drafts: one to be trained or whose heads are measured; or those that decode in turn.
        task, batch_size, temperature: of measuring.
    """

    kind: Kind
    label: str
    config: dict[str, Any] = field(repr=False)
    seconds: float
    drafts: tuple[Draft, ...] = ()
    task: Task | None = None
    batch_size: int = 1
    temperature: float = 0.0

    @property
    def key(self) -> str:
        """12 hexadecimal digits that stand for this cell in the results."""
        return digest([self.kind, self.config])


class Plan:
    """All cells of a suite in the order in which they run: text, trainings, measurements, accuracies.

    Args:
        suite: what is asked for.
        place: on what everything runs: target, device, dtype.

    Raises:
        UserError: the suite names a file that cannot be read.
    """

    def __init__(self, suite: Suite, place: dict[str, str]):
        self.suite, self.place = suite, place
        self._tasks = {task.name: _task_identity(task) for task in suite.tasks}
        self.drafts = [draft for system in suite.systems for draft in _drafts(suite, system)]
        self.text = self._text_cell()
        trained = [draft for draft in self.drafts if draft.loss is not None]
        trainings = [self._training_cell(draft) for draft in trained]
        measuring = [
            self._measuring_cell(group, task, size, temperature)
            for group in _groups(self.drafts)
            for task in suite.tasks
            for size, temperature in product(suite.measuring.batch_sizes, suite.measuring.temperatures)
        ]
        accuracies = map(self._accuracy_cell, trained if suite.measuring.accuracy else [])
        self.cells: list[Cell] = [*([self.text] if trained else []), *trainings, *measuring, *accuracies]

    def weights(self, draft: Draft) -> str:
        """12 hexadecimal digits that stand for everything that decides a trained draft's weights."""
        options = self.suite.training.model_dump(include={"max_length", "batch_tokens", "optimizer", "dtype"})
        return digest([self.place, self.text.key, options, draft.identity()])

    def _cell(self, kind: Kind, label: str, config: dict[str, Any], tokens: float, **fields: Any) -> Cell:
        seconds = tokens / _TOKENS_PER_SECOND[kind]
        return Cell(kind, label, {"place": self.place, **config}, seconds, **fields)

    def _text_cell(self) -> Cell:
        options = self.suite.text
        config = options.model_dump(mode="json") | {"files": [_file_digest(file) for file in options.files]}
        return self._cell("text", "training text", config, options.texts * options.max_length)

    def _training_cell(self, draft: Draft) -> Cell:
        assert draft.budget is not None
        tokens = (draft.budget.steps or 0) * self.suite.training.batch_tokens
        tokens += 60 * (draft.budget.minutes or 0) * _TOKENS_PER_SECOND["training"]
        config = {"method": asdict(draft.method), "weights": self.weights(draft), **draft.identity()}
        return self._cell("training", f"train {draft.method.words}", config, tokens, drafts=(draft,))

    def _measuring_cell(self, drafts: list[Draft], task: Task, size: int, temperature: float) -> Cell:
        options = self.suite.measuring
        chosen = [
            {
                "method": asdict(d.method),
                "trees": d.trees,
                "weights": self.weights(d) if d.loss else d.identity(),
            }
            for d in drafts
        ]
        config = {"drafts": chosen, "batch_size": size, "temperature": temperature, "rounds": options.rounds}
        trained = drafts[0].method
        equal = f", {trained.budget}, seed {trained.seed}" if trained.budget else ""
        label = f"measure {task.name}, batch {size}, temperature {temperature:g}{equal}"
        methods = 1 + sum(len(draft.trees) for draft in drafts)
        batches = max(1, options.prompts // size)
        tokens = methods * options.rounds * batches * options.max_new_tokens
        fields = {"drafts": tuple(drafts), "task": task, "batch_size": size, "temperature": temperature}
        return self._cell("measuring", label, config | self._prompts([task]), tokens, **fields)

    def _accuracy_cell(self, draft: Draft) -> Cell:
        tasks, options = self.suite.tasks, self.suite.measuring
        config = {"method": asdict(draft.method), "weights": self.weights(draft), **self._prompts(tasks)}
        tokens = len(tasks) * options.prompts * options.max_new_tokens
        return self._cell("accuracy", f"accuracy of {draft.method.words}", config, tokens, drafts=(draft,))

    def _prompts(self, tasks: Sequence[Task]) -> dict[str, Any]:
        limits = self.suite.measuring.model_dump(include={"prompts", "max_new_tokens"})
        return {"tasks": {task.name: self._tasks[task.name] for task in tasks}, **limits}


def _drafts(suite: Suite, system: System) -> list[Draft]:
    """A system at every loss, budget, learning rate and seed; once if it is not trained."""
    kind, training = SYSTEMS[system.system], suite.training
    trees = suite.measuring.trees if system.trees is None else system.trees
    if not kind.trainable:
        return [Draft(Method(system.name), system, trees)]
    combinations = product(
        training.budgets,
        system.losses or training.losses,
        system.learning_rates or training.learning_rates,
        training.seeds,
    )
    return [
        Draft(
            Method(system.name, None, loss, budget.name, rate, seed),
            system,
            trees,
            suite.loss(loss, kind),
            budget,
        )
        for budget, loss, rate, seed in combinations
    ]


def _groups(drafts: Sequence[Draft]) -> list[list[Draft]]:
    """Drafts that decode: those of equal budget and seed, each group with those that need no training."""
    drafts = [draft for draft in drafts if draft.trees]
    pairs = dict.fromkeys((d.method.budget, d.method.seed) for d in drafts if d.loss)
    free = [draft for draft in drafts if draft.loss is None]
    groups = [
        [d for d in drafts if d.loss and (d.method.budget, d.method.seed) == pair] + free for pair in pairs
    ]
    return groups or ([free] if free else [])


def _task_identity(task: Task) -> str:
    return f"kind {task.kind}" if task.file is None else f"file {_file_digest(task.file)} {task.group or ''}"


def _file_digest(name: str) -> str:
    whole = hashlib.blake2b(digest_size=6)
    try:
        with Path(name).open("rb") as file:
            while block := file.read(1 << 20):
                whole.update(block)
    except OSError as error:
        raise UserError(f"cannot read {name}: {explain(error.errno)}") from error
    return whole.hexdigest()
