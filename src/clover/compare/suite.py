"""A suite: what is compared, read from a TOML file.

name = "mine"
target = "embedded"              # or a directory, or a name on the hub

[text]                           # what the drafts learn from
texts = 400                      # the target writes so many itself …
files = ["chats.jsonl"]          # … after the prompts in these files; without files after openings of source code

[training]
batch_tokens = 2048
losses = ["default", "paper"]
budgets = [{ steps = 200 }, { minutes = 3.0 }]

[losses.with-labels]             # a loss of one's own, to be named in `losses`
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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator, with_config
from typing_extensions import Self

from clover.data.slices import KINDS
from clover.drafts import DraftModel
from clover.drafts.config import LossConfig
from clover.drafts.loading import SYSTEMS
from clover.errors import UserError
from clover.files import explain, validated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

PLAIN, EMBEDDED, PROMPTS = "plain", "embedded", "prompts"
DEFAULT, PAPER, DISTILLATION = LOSSES = "default", "paper", "distillation"
SUITES = Path(__file__).parent / "suites"

T = TypeVar("T")


def _each_once(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError("each entry must be there once only")
    return values


def _known_system(name: str) -> str:
    if name not in SYSTEMS:
        raise ValueError(f"must be one of {', '.join(sorted(SYSTEMS))}")
    return name


def _known_kind(name: str) -> str:
    if name not in (PROMPTS, *KINDS):
        raise ValueError(f"must be one of {', '.join((PROMPTS, *KINDS))}")
    return name


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
FileName = Annotated[str, Field(pattern=r"^[\w.-]+$")]
Each = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_each_once)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class OwnLoss(LossConfig):
    """A loss that the suite defines itself."""


class TextOptions(_Table):
    """What the drafts learn from.

    Args:
        files: training files; without any openings of the recipe's corpus, which is for the embedded target only.
        write: let the target write the answers itself; otherwise the files are learnt as they are.
        texts: texts at most.
        max_length, prompt_tokens, temperatures, batch_size, minutes: of the writing, see `RegenerateConfig`.
    """

    files: tuple[str, ...] = ()
    write: bool = True
    texts: Count = 400
    max_length: Annotated[int, Field(ge=8)] = 256
    prompt_tokens: Count = 48
    temperatures: Each[Temperature] = (0.0, 1.0)
    batch_size: Count = 32
    minutes: Positive | None = None

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if not (self.write or self.files):
            raise ValueError("write must be true where there are no files")
        return self


class Budget(_Table):
    """How long every draft is trained: `steps` at equal tokens per step, or `minutes` of wall clock."""

    steps: Count | None = None
    minutes: Positive | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("a budget has either steps or minutes")
        return self

    @property
    def name(self) -> str:
        """The budget in words.

        >>> Budget(steps=200).name, Budget(minutes=2.5).name
        ('200 steps', '2.5 min')
        """
        return f"{self.steps} steps" if self.steps else f"{self.minutes:g} min"


class TrainingOptions(_Table):
    """How every draft is trained; the rest as `clover train` does it.

    Args:
        losses: "default" (what each system learns best by), "paper" (each system's own), "distillation" (one for
            all), or names of [losses] tables.
        learning_rates: of every system that names none of its own.
        seeds: of the starting values and of the order of the texts.
        optimizer: see `TrainConfig`.
        dtype: "bf16" or "fp32"; bf16 on a GPU when left out.
    """

    max_length: Annotated[int, Field(ge=8)] = 256
    batch_tokens: Annotated[int, Field(ge=8)] = 2048
    losses: Each[str] = (DEFAULT,)
    budgets: Each[Budget] = (Budget(steps=200),)
    learning_rates: Each[Positive] = (1e-3,)
    seeds: Each[int] = (0,)
    optimizer: Literal["muon", "adamw"] = "muon"
    dtype: Literal["bf16", "fp32"] | None = None


class System(_Table):
    """One draft system, or an ablation of one.

    Args:
        system: its type: clover2, medusa, …
        name: what it is called in the report; its type when left out.
        options: fields of its configuration.
        losses, learning_rates: in place of those of [training].
        trees: in place of those of [measuring]; with none its heads are measured, but it does not decode.
        against: name of the system that the ablation table compares it with.
    """

    system: Annotated[str, AfterValidator(_known_system)]
    name: Name
    options: dict[str, Any] = {}
    losses: Each[str] | None = None
    learning_rates: Each[Positive] | None = None
    trees: tuple[str, ...] | None = None
    against: str | None = None


class MeasuringOptions(_Table):
    """How decoding is measured.

    Args:
        trees: token trees of every system that names none of its own.
        rounds: how often every method decodes all prompts; the median counts.
        max_new_tokens: tokens per prompt at most.
        prompts: different prompts per task; a batch size above it takes as many as fill one batch.
        accuracy: measure the accuracy of the heads, too.
    """

    trees: Each[str] = ("clover2",)
    batch_sizes: Each[Count] = (1,)
    temperatures: Each[Temperature] = (0.0,)
    rounds: Count = 3
    max_new_tokens: Count = 128
    prompts: Count = 8
    accuracy: bool = True


class Task(_Table):
    """Prompts to measure on: those of a task file, or one kind of source code.

    Args:
        file: in any format that `clover.data.tasks` reads.
        group: take the prompts of this group only (a task of Spec-Bench, say).
        kind: one of `clover.data.slices.KINDS`, from files that the recipe holds out, or "prompts": the embedded
            prompts that nothing was chosen by.
    """

    name: Name
    file: str | None = None
    group: str | None = None
    kind: Annotated[str, AfterValidator(_known_kind)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.kind is None):
            raise ValueError(f"task {self.name!r} needs either a file or a kind")
        if self.group is not None and self.file is None:
            raise ValueError(f"task {self.name!r} has a group, which only a file has")
        return self


class Suite(_Table):
    """All that a comparison consists of; see the head of this file."""

    name: FileName
    title: str = ""
    note: str = ""
    target: str = EMBEDDED
    text: TextOptions = TextOptions()
    training: TrainingOptions = TrainingOptions()
    losses: dict[str, OwnLoss] = {}
    systems: Annotated[tuple[System, ...], Field(min_length=1)]
    measuring: MeasuringOptions = MeasuringOptions()
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        names = _each_once(tuple(system.name for system in self.systems))
        _each_once(tuple(task.name for task in self.tasks))
        if PLAIN in names:
            raise ValueError(f"no system can be called {PLAIN!r}, which is plain decoding")
        if taken := set(self.losses).intersection(LOSSES):
            raise ValueError(f"no loss can be called {taken.pop()!r}, which has a meaning of its own")
        losses = (*LOSSES, *self.losses)
        for system in self.systems:
            if system.against not in (None, *names):
                raise ValueError(f"against of {system.name!r} must be one of {', '.join(names)}")
            for loss in system.losses or self.training.losses:
                if loss not in losses:
                    raise ValueError(f"the loss {loss!r} must be one of {', '.join(losses)}")
        if self.target != EMBEDDED and not self.text.files:
            raise ValueError(
                "[text] needs files (or the command --data): only the embedded target has openings"
            )
        return self

    def loss(self, name: str, system: type[DraftModel]) -> LossConfig:
        """The loss that `name` means for a system."""
        known = {DEFAULT: system.default_loss, PAPER: system.paper_loss, DISTILLATION: LossConfig()}
        return known.get(name) or self.losses[name]

    @property
    def digest(self) -> str:
        """12 hexadecimal digits that stand for every value of the suite."""
        return digest(self.model_dump(mode="json"))


def read_suite(
    name: str, target: str | None = None, data: Sequence[str] = (), tasks: Sequence[str] = ()
) -> Suite:
    """Read a suite file, or one of the package's own by its name. Files that it names are looked for beside it.

    Args:
        name: of the file or the suite.
        target, data: model and training files in place of the suite's.
        tasks: in place of the suite's, each `NAME=FILE`, or `NAME=FILE:GROUP` for one group of prompts.

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
            f"cannot read the suite {name}: {explain(error.errno)}; there are also {known}"
        ) from error
    except ValueError as error:
        raise UserError(f"{name} is not valid TOML: {error}") from error
    _complete(table, path.parent)
    own = {"target": target, "tasks": [_read_task(task) for task in tasks]}
    table |= {key: value for key, value in own.items() if value}
    if data and isinstance(text := table.setdefault("text", {}), dict):
        text["files"] = list(data)
    return validated(Suite, table, name)


def digest(value: Any) -> str:
    """12 hexadecimal digits of a JSON value.

    >>> digest({"a": 1, "b": (2.0,)}) == digest({"b": [2.0], "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _read_task(text: str) -> dict[str, Any]:
    name, _, where = text.partition("=")
    if not (name and where):
        raise UserError(f"the task {text!r} must be NAME=FILE or NAME=FILE:GROUP")
    file, _, group = where.partition(":")
    return {"name": name, "file": file, "group": group or None}


def _complete(table: dict[str, Any], folder: Path) -> None:
    """Name systems after their types, and put `folder` before files; what is of a wrong type is left as it is."""

    def tables(name: str) -> list[dict[str, Any]]:
        found = table.get(name)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def beside(file: Any) -> Any:
        return str(folder / file) if isinstance(file, str) else file

    for system in tables("systems"):
        system.setdefault("name", system.get("system"))
    for task in tables("tasks"):
        if "file" in task:
            task["file"] = beside(task["file"])
    if isinstance(text := table.get("text"), dict) and isinstance(text.get("files"), list):
        text["files"] = [beside(file) for file in text["files"]]
