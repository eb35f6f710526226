"""From a suite to the list of its cells: each is run once and leaves one line of results.

A cell's key stands for everything that decides its result, so that a suite that has changed runs only what is new.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from clover.drafting import parse_tree
from clover.drafts import LossConfig
from clover.drafts.config import all_options
from clover.drafts.loading import SYSTEMS
from clover.files import checksum
from experiments.compare.suite import PLAIN, Suite, SuiteTask, System

_DRAFT_FILES = ("config.json", "model.safetensors")


@dataclass(frozen=True)
class MethodKey:
    """What decodes, as results name it; a draft is named by a method without a tree.

    Args:
        system: the system's name in the suite, or "plain".
        tree: its token tree.
        loss, steps, learning_rate, seed: how the draft was trained; None where there is nothing to train.
    """

    system: str = PLAIN
    tree: str | None = None
    loss: str | None = None
    steps: int | None = None
    learning_rate: float | None = None
    seed: int | None = None

    @property
    def words(self) -> str:
        """Return the draft in one line.

        >>> MethodKey("medusa", None, "paper", 200, 1e-3, 0).words
        'medusa, paper loss, 200 steps, rate 0.001, seed 0'
        """
        if not self.steps:
            return self.system + (f", seed {self.seed}" if self.seed else "")
        how = f"{self.loss} loss, {self.steps} steps, rate {self.learning_rate:g}, seed {self.seed}"
        return f"{self.system}, {how}"


@dataclass(frozen=True)
class Draft:
    """A system of the suite trained in one way, or before (`place`); no loss where there is nothing to train."""

    method: MethodKey
    system: System
    trees: tuple[str, ...]
    loss: LossConfig | None
    place: str | None = None

    @property
    def methods(self) -> list[MethodKey]:
        """Return the draft with each of its trees."""
        return [replace(self.method, tree=tree) for tree in self.trees]


@dataclass(frozen=True)
class Cell:
    """One piece of work with one line of results: a draft to train, or with a task drafts that decode in turn.

    `label` is what it is called while it runs, `config` what decides its result, as JSON values.
    """

    label: str
    config: dict[str, Any] = field(repr=False)
    drafts: tuple[Draft, ...]
    task: SuiteTask | None = None
    batch_size: int = 1
    temperature: float = 0.0

    @property
    def key(self) -> str:
        """Return what stands for this cell in the results."""
        return digest(self.config)


class Plan:
    """All cells of a suite in the order in which they run: trainings, then measurements.

    Everything runs on `place`: target, a hash of its weights, device, dtype. `text` stands for the training text, as
    `digest` does. Trained drafts that are not there are left out; the others keep their seeds. UserError if the suite
    names a file that cannot be read.
    """

    def __init__(self, suite: Suite, place: dict[str, str]):
        self.suite, self.place = suite, place
        self._files: dict[str, str] = {}  # by place: large files, and every cell asks for them
        self._tasks = {
            task.name: "code" if task.file is None else f"file {checksum(Path(task.file))} {task.group or ''}"
            for task in suite.tasks
        }
        files = [Path(file) for file in suite.text.files]  # a draft does not depend on where they lie
        text = suite.text.model_dump() | {"files": [file.name for file in files]}
        self.text = digest([place, text, list(map(checksum, files))])
        self.drafts = [draft for system in suite.systems for draft in _drafts(suite, system)]
        judged = suite.measuring.accuracy  # also the heads of drafts that were trained before
        settings = product(
            _groups(self.drafts), suite.tasks, suite.measuring.batch_sizes, suite.measuring.temperatures
        )
        self.cells = [
            *(self._training_cell(draft) for draft in self.drafts if draft.loss or (draft.place and judged)),
            *(self._measuring_cell(*setting) for setting in settings),
        ]

    def weights(self, draft: Draft) -> str:
        """Return what stands for all that decides a draft's weights, as in `digest`; its name does not."""
        if draft.place is not None:
            if draft.place not in self._files:
                self._files[draft.place] = digest([checksum(Path(draft.place, one)) for one in _DRAFT_FILES])
            return self._files[draft.place]
        system, how = draft.system.system, draft.method
        options = all_options(SYSTEMS[system].config_class, draft.system.options)
        training = self.suite.training.model_dump(include={"batch_tokens", "dtype"})
        loss = draft.loss and asdict(draft.loss)
        return digest([self.text, training, system, options, loss, how.steps, how.learning_rate, how.seed])

    def _training_cell(self, draft: Draft) -> Cell:
        config = self._config([draft], self.suite.tasks if self.suite.measuring.accuracy else ())
        verb = "train" if draft.place is None else "heads of"
        return Cell(f"{verb} {draft.method.words}", config, (draft,))

    def _measuring_cell(
        self, drafts: tuple[Draft, ...], task: SuiteTask, size: int, temperature: float
    ) -> Cell:
        if temperature == 0:  # a draft that is drawn from needs a temperature
            trees = [tuple(tree for tree in one.trees if parse_tree(tree).exact) for one in drafts]
            drafts = tuple(replace(one, trees=some) for one, some in zip(drafts, trees, strict=True))
        how = {"batch_size": size, "temperature": temperature, "rounds": self.suite.measuring.rounds}
        grown = [tuple(map(_tree_content, draft.trees)) for draft in drafts]
        config = self._config(drafts, [task]) | how | {"trees": grown}
        steps, seed = drafts[0].method.steps, drafts[0].method.seed
        trained = f", {steps} steps, seed {seed}" if steps else ""
        label = f"measure {task.name}, batch {size}, temperature {temperature:g}{trained}"
        return Cell(label, config, drafts, task, size, temperature)

    def _config(self, drafts: Sequence[Draft], tasks: Sequence[SuiteTask]) -> dict[str, Any]:
        measuring = self.suite.measuring.model_dump(include={"prompts", "max_new_tokens"})
        return {
            "place": self.place,
            "drafts": [{"method": asdict(one.method), "weights": self.weights(one)} for one in drafts],
            "tasks": {task.name: self._tasks[task.name] for task in tasks},
            **(measuring if tasks else {}),
        }


def draft_is_there(place: str) -> bool:
    """Return whether a directory holds a trained draft."""
    return Path(place, "config.json").is_file()


def digest(value: Any) -> str:
    """12 hexadecimal digits of a JSON value.

    >>> digest({"a": 1, "b": (2.0,)}) == digest({"b": [2.0], "a": 1})
    True
    """
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=6).hexdigest()


def _tree_content(tree: str) -> str:
    """Return what stands for a tree: its name, in which a file's paths stand in place of the file."""
    return parse_tree(tree).name


def _drafts(suite: Suite, system: System) -> list[Draft]:
    """Return a system at every loss, number of steps, learning rate and seed, or the drafts that are there."""
    kind, training = SYSTEMS[system.system], suite.training
    trees = suite.measuring.trees if system.trees is None else system.trees
    if system.drafts is not None:
        return [
            Draft(MethodKey(system.label, seed=seed), system, trees, None, place)
            for seed, place in enumerate(system.drafts)
            if draft_is_there(place)
        ]
    rates = system.learning_rates or training.learning_rates
    combinations = product(training.steps, system.losses or training.losses, rates, training.seeds)
    return [
        Draft(MethodKey(system.label, None, loss, steps, rate, seed), system, trees, suite.loss(loss, kind))
        for steps, loss, rate, seed in combinations
    ]


def _groups(drafts: Sequence[Draft]) -> list[tuple[Draft, ...]]:
    """Drafts that decode: those of equal steps and seed, each group with those that were trained before."""
    groups: dict[tuple[int | None, int | None], list[Draft]] = {}
    for draft in drafts:
        if draft.trees:
            trained_here = (draft.method.steps, draft.method.seed) if draft.loss else (None, None)
            groups.setdefault(trained_here, []).append(draft)
    free = groups.pop((None, None), [])
    return [(*group, *free) for group in groups.values() or ([[]] if free else [])]
