"""A suite: what is compared, read from a TOML file.

name = "mine"
target = "embedded"              # or a directory, or a name on the hub

[text]                           # what the drafts learn from
texts = 400                      # the target writes so many itself …
files = ["chats.jsonl"]          # … after the prompts in these files; without files after openings of source code

[training]
batch_tokens = 2048
losses = ["paper", "distillation"]
budgets = [{ steps = 200 }, { minutes = 3.0, losses = ["distillation"] }]

[losses.with-labels]             # a loss of one's own, for `losses`
label_weight = 1.0

[[systems]]
system = "clover2"
options = { num_augmenting_layers = 1 }
trees = ["clover2", "chain:4"]

[measuring]
batch_sizes = [1, 4]
temperatures = [0.0, 1.0]

[[tasks]]
name = "code"
kind = "prompts"
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from clover.compare.fields import check, read_table
from clover.data.slices import KINDS
from clover.drafts.loading import SYSTEMS
from clover.errors import UserError
from clover.files import explain
from clover.losses import LossConfig
from clover.train.config import DTYPES, OPTIMIZERS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

PAPER, DISTILLATION, EMBEDDED, PROMPTS = "paper", "distillation", "embedded", "prompts"
SUITES = Path(__file__).parent / "suites"


@dataclass(frozen=True)
class TextOptions:
    """What the drafts learn from.

    Args:
        files: training files; without any openings of the recipe's corpus, which is for the embedded target only.
        write: let the target write the answers itself; otherwise the files are learnt as they are.
        texts: texts at most.
        max_length, prompt_tokens, temperatures, batch_size, minutes: of the writing, see `RegenerateConfig`.
    """

    files: tuple[str, ...] = ()
    write: bool = True
    texts: int = 400
    max_length: int = 256
    prompt_tokens: int = 48
    temperatures: tuple[float, ...] = (0.0, 1.0)
    batch_size: int = 32
    minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("texts", "prompt_tokens", "batch_size"):
            check(name, value := getattr(self, name), value >= 1, "at least 1")
        check("max_length", self.max_length, self.max_length >= 8, "at least 8")
        check("temperatures", self.temperatures, _temperatures(self.temperatures), "numbers of at least 0")
        check("minutes", self.minutes, self.minutes is None or _positive(self.minutes), "more than 0")
        check("write", self.write, self.write or bool(self.files), "true where there are no files")


@dataclass(frozen=True)
class Budget:
    """How long every draft is trained: `steps` at equal tokens per step, or `minutes` of wall clock.

    Args:
        losses: the losses trained at this budget; those of [training] when left out.
    """

    steps: int | None = None
    minutes: float | None = None
    losses: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise UserError("a budget has either steps or minutes")
        check("steps", self.steps, self.steps is None or self.steps >= 1, "at least 1")
        check("minutes", self.minutes, self.minutes is None or _positive(self.minutes), "more than 0")

    @property
    def name(self) -> str:
        """The budget in words.

        >>> Budget(steps=200).name, Budget(minutes=2.5).name
        ('200 steps', '2.5 min')
        """
        return f"{self.steps} steps" if self.steps else f"{self.minutes:g} min"


@dataclass(frozen=True)
class TrainingOptions:
    """How every draft is trained; the rest as `clover train` does it.

    Args:
        losses: "paper" (each system's own), "distillation" (one for all), or names of [losses] tables.
        learning_rates: of every system that names none of its own.
        optimizer: "muon" or "adamw", see `TrainConfig`.
        dtype: "bf16" or "fp32"; bf16 on a GPU when left out.
    """

    max_length: int = 256
    batch_tokens: int = 2048
    losses: tuple[str, ...] = (DISTILLATION,)
    budgets: tuple[Budget, ...] = (Budget(steps=200),)
    learning_rates: tuple[float, ...] = (1e-3,)
    seeds: tuple[int, ...] = (0,)
    optimizer: str = "muon"
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in ("losses", "budgets", "learning_rates", "seeds"):
            _check_list(name, getattr(self, name))
        for name in ("max_length", "batch_tokens"):
            check(name, value := getattr(self, name), value >= 8, "at least 8")
        check("learning_rates", self.learning_rates, all(map(_positive, self.learning_rates)), "more than 0")
        check("optimizer", self.optimizer, self.optimizer in OPTIMIZERS, " or ".join(OPTIMIZERS))
        check("dtype", self.dtype, self.dtype in (None, *DTYPES), " or ".join(DTYPES))


@dataclass(frozen=True)
class System:
    """One draft system, or an ablation of one.

    Args:
        system: its type: clover2, medusa, …
        name: what it is called in the report; its type when left out.
        options: fields of its configuration.
        losses, learning_rates: in place of those of [training].
        trees: in place of those of [measuring]; with none its heads are measured, but it does not decode.
        against: name of the system that the ablation table compares it with.
    """

    system: str
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    losses: tuple[str, ...] | None = None
    learning_rates: tuple[float, ...] | None = None
    trees: tuple[str, ...] | None = None
    against: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.system)
        check("name", self.name, self.name != "plain", "another name: plain is plain decoding")
        check("system", self.system, self.system in SYSTEMS, f"one of {', '.join(sorted(SYSTEMS))}")
        for key in ("losses", "learning_rates"):
            if (value := getattr(self, key)) is not None:
                _check_list(key, value)
        rates = self.learning_rates or ()
        check("learning_rates", rates, all(map(_positive, rates)), "more than 0")


@dataclass(frozen=True)
class MeasuringOptions:
    """How decoding is measured.

    Args:
        trees: token trees of every system that names none of its own.
        rounds: how often every method decodes all prompts; the median counts.
        max_new_tokens: tokens per prompt at most.
        prompts: prompts of a task at most; larger batches are filled up by taking them again.
        accuracy: measure the accuracy of the heads, too.
    """

    trees: tuple[str, ...] = ("clover2",)
    batch_sizes: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    rounds: int = 3
    max_new_tokens: int = 128
    prompts: int = 8
    accuracy: bool = True

    def __post_init__(self) -> None:
        for name in ("trees", "batch_sizes", "temperatures"):
            _check_list(name, getattr(self, name))
        for name in ("rounds", "max_new_tokens", "prompts"):
            check(name, value := getattr(self, name), value >= 1, "at least 1")
        check("batch_sizes", self.batch_sizes, min(self.batch_sizes) >= 1, "at least 1")
        check("temperatures", self.temperatures, _temperatures(self.temperatures), "numbers of at least 0")


@dataclass(frozen=True)
class Task:
    """Prompts to measure on: those of a task file, or one kind of source code.

    Args:
        file: in any format that `clover.data.tasks` reads.
        group: take the prompts of this group only (a task of Spec-Bench, say).
        kind: one of `clover.data.slices.KINDS`, from files that the recipe holds out, or "prompts": the embedded
            prompts that nothing was chosen by.
    """

    name: str
    file: str | None = None
    group: str | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        if (self.file is None) == (self.kind is None):
            raise UserError(f"task {self.name!r} has either a file or a kind")
        check(
            "kind", self.kind, self.kind in (None, PROMPTS, *KINDS), f"one of {', '.join((PROMPTS, *KINDS))}"
        )
        check("group", self.group, self.group is None or self.file is not None, "left out without a file")


@dataclass(frozen=True)
class Suite:
    """All that a comparison consists of; see the head of this file."""

    name: str
    systems: tuple[System, ...]
    tasks: tuple[Task, ...]
    title: str = ""
    note: str = ""
    target: str = EMBEDDED
    text: TextOptions = field(default_factory=TextOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    measuring: MeasuringOptions = field(default_factory=MeasuringOptions)
    losses: dict[str, LossConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plain = self.name.replace("-", "").replace("_", "").replace(".", "")
        check("name", self.name, plain.isalnum(), "letters, digits, dots and dashes")
        _check_list("systems", names := [system.name for system in self.systems])
        _check_list("tasks", [task.name for task in self.tasks])
        check("losses", PAPER, PAPER not in self.losses, 'another name: "paper" is each system\'s own')
        for system in self.systems:
            known = system.against is None or system.against in names
            check(f"against of {system.name!r}", system.against, known, f"one of {', '.join(names)}")
        for name in self._used_losses():
            known = (PAPER, DISTILLATION, *self.losses)
            check("a loss", name, name in known, f"one of {', '.join(dict.fromkeys(known))}")
        if self.target != EMBEDDED and not self.text.files:
            raise UserError(
                "[text] needs files (or the command --data): only the embedded target has openings of its own"
            )

    def _used_losses(self) -> list[str]:
        parts = [self.training.losses, *(b.losses or () for b in self.training.budgets)]
        return [name for part in (*parts, *(s.losses or () for s in self.systems)) for name in part]

    def loss(self, name: str, paper_loss: LossConfig) -> LossConfig:
        """The loss that `name` means for a system with `paper_loss`."""
        return paper_loss if name == PAPER else self.losses.get(name, LossConfig())

    @property
    def digest(self) -> str:
        """12 hexadecimal digits that stand for every value of the suite."""
        return digest(asdict(self))


def read_suite(name: str) -> Suite:
    """Read a suite file, or one of the package's own by its name.

    Files that the suite names are looked for beside it.

    Raises:
        UserError: there is no such suite, or it holds something it should not; one line that names the key.
    """
    path = Path(name)
    if not path.is_file() and (SUITES / f"{name}.toml").is_file():
        path = SUITES / f"{name}.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.toml")))
        raise UserError(
            f"cannot read the suite {name}: {explain(error.errno or 0)}; there are also {known}"
        ) from error
    except ValueError as error:
        raise UserError(f"{name} is not valid TOML: {error}") from error
    return _beside(read_table(Suite, table, name), path.parent)


def with_own(suite: Suite, target: str | None, data: Sequence[str], tasks: Sequence[str]) -> Suite:
    """The suite on another target, with other training files and other tasks; what is empty stays.

    Args:
        tasks: each `NAME=FILE`, or `NAME=FILE:GROUP` for one group of prompts.

    Raises:
        UserError: a task is written in another way, or the suite does not allow it.
    """
    own = tuple(map(_read_task, tasks))
    return replace(
        suite,
        target=target or suite.target,
        text=replace(suite.text, files=tuple(data)) if data else suite.text,
        tasks=own or suite.tasks,
    )


def _read_task(text: str) -> Task:
    name, _, where = text.partition("=")
    if not (name and where):
        raise UserError(f"the task {text!r} must be NAME=FILE or NAME=FILE:GROUP")
    file, _, group = where.partition(":")
    return Task(name, file=file, group=group or None)


def digest(value: Any) -> str:
    """12 hexadecimal digits of a JSON value.

    >>> digest({"a": 1, "b": (2.0,)}) == digest({"b": [2.0], "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _beside(suite: Suite, folder: Path) -> Suite:
    files = tuple(str(folder / file) for file in suite.text.files)
    tasks = tuple(replace(t, file=str(folder / t.file)) if t.file else t for t in suite.tasks)
    return replace(suite, text=replace(suite.text, files=files), tasks=tasks)


def _check_list(name: str, values: Any) -> None:
    listed = list(values)
    check(name, listed, len(listed) > 0, "a list with at least one entry")
    for value in listed:
        check(name, value, listed.count(value) == 1, "there once only")


def _positive(value: float) -> bool:
    return value > 0 and isfinite(value)


def _temperatures(values: tuple[float, ...]) -> bool:
    return len(values) > 0 and all(value >= 0 and isfinite(value) for value in values)
