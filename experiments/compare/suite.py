"""A suite: what is compared, read from a TOML file such as those in `suites/`; each table is a class below."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from clover.drafts import DraftModel, LossConfig
from clover.drafts.loading import SYSTEMS
from clover.errors import UserError, one_line
from clover.files import read_text
from clover.sampling.params import Temperature
from clover.train.config import Rate
from clover.validation import validated
from experiments.compare.options import CompareOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

PLAIN, EMBEDDED = "plain", "embedded"
SUITES = Path(__file__).parent / "suites"

T = TypeVar("T")


def _each_once(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError("each entry must be there once only")
    return values


Count = Annotated[int, Field(ge=1, lt=2**31)]
Length = Annotated[int, Field(ge=8, lt=2**31)]
Seed = Annotated[int, Field(ge=0, le=2**62)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
Each = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_each_once)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainingText(_Table):
    """What the drafts learn from: what the target writes, half greedily, half at temperature 1."""

    files: tuple[str, ...] = ()  # whose prompts it answers; without any, openings of the recipe's corpus
    texts: Count = 400  # at most
    max_length: Length = 256  # tokens of a text, its prompt included
    prompt_tokens: Count = 48  # these and the next two: see `RegenerateConfig`
    batch_size: Count = 32
    minutes: Positive | None = None


class TrainingOptions(_Table):
    """How every draft is trained, once at each combination; the rest as `clover train` does it.

    Except for the vocabulary, which stays whole where a system's options do not name a size.
    """

    batch_tokens: Length = 2048
    steps: Each[Count] = (200,)
    # "default" (what a system learns best by), "paper" (its own), "distillation" (one for all), or a [losses] table.
    losses: Each[str] = ("default",)
    learning_rates: Each[Rate] = (1e-3,)  # of every system that names none of its own
    seeds: Each[Seed] = (0,)  # of the starting values and of the order of the texts
    dtype: Literal["bfloat16", "float32"] | None = None  # when left out bfloat16 for a target in it


class System(_Table):
    """One draft system, or an ablation of one."""

    system: str  # its type: clover2, medusa, …
    name: Name | None = None  # in the report; its type when left out
    options: dict[str, Any] = {}  # fields of its configuration
    # Directories of trained drafts, one per seed, in place of training: of --drafts, or beside the suite.
    drafts: Each[str] | None = None
    losses: Each[str] | None = None  # this and the next: in place of those of [training]
    learning_rates: Each[Rate] | None = None
    trees: tuple[str, ...] | None = None  # in place of those of [measuring]; with none it does not decode
    against: str | None = None  # name of the system that the ablation table compares it with

    @property
    def label(self) -> str:
        """Return what results call it."""
        return self.name or self.system


class MeasuringOptions(_Table):
    """How decoding is measured."""

    trees: Each[str] = ("clover2",)  # of every system that names none of its own
    batch_sizes: Each[Count] = (1,)
    temperatures: Each[Temperature] = (0.0,)
    rounds: Count = 3  # how often every method decodes all prompts; the median counts
    max_new_tokens: Count = 128  # per prompt at most
    prompts: Count = 8  # different ones per task; a larger batch size takes as many as fill one batch
    accuracy: bool = True  # measure the accuracy of the heads, too


class SuiteTask(_Table):
    """Prompts to measure on."""

    name: Name = "code"
    file: str | None = None  # as `clover.data.tasks` reads them; source code held out when left out
    group: str | None = None  # the prompts of this group only, such as a task of Spec-Bench

    @model_validator(mode="after")
    def _group_of_a_file(self) -> Self:
        if self.group is not None and self.file is None:
            raise ValueError(f"task {self.name!r} has a group, which only a file has")
        return self


class Suite(_Table):
    """All that a comparison consists of."""

    name: Name
    title: str = ""
    note: str = ""
    target: str = EMBEDDED
    text: TrainingText = TrainingText()
    training: TrainingOptions = TrainingOptions()
    losses: dict[str, LossConfig] = {}
    systems: Annotated[tuple[System, ...], Field(min_length=1)]
    measuring: MeasuringOptions = MeasuringOptions()
    tasks: Annotated[tuple[SuiteTask, ...], Field(min_length=1)] = (SuiteTask(),)

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        names = _each_once(tuple(system.label for system in self.systems))
        _each_once(tuple(task.name for task in self.tasks))
        for system in self.systems:
            _check_known(system.system, f"system of {system.label!r}", sorted(SYSTEMS))
            _check_known(system.against, f"against of {system.label!r}", (None, *names))
            kind = SYSTEMS[system.system]
            for loss in system.losses or self.training.losses:
                _check_known(
                    loss, f"the loss of {system.label!r}", (*kind.training_defaults.losses(), *self.losses)
                )
        trains = any(not one.drafts for one in self.systems)
        if trains and self.target != EMBEDDED and not self.text.files:
            raise ValueError(
                "[text] needs files (or the command --data): only the embedded target has openings"
            )
        return self

    def loss(self, name: str, system: type[DraftModel]) -> LossConfig:
        """Return the loss that `name` means for a system."""
        return self.losses.get(name) or system.training_defaults.losses()[name]


def _check_known(name: str | None, what: str, known: Sequence[str | None]) -> None:
    if name not in known:
        raise ValueError(f"{what} is {name!r}; it must be one of {', '.join(filter(None, known))}")


def read_suite(options: CompareOptions) -> Suite:
    """Read a suite file, or one of the package's own by its name; what the options choose comes in place of its own.

    Files and drafts that it names are looked for beside it, or where the options say. UserError if there is no such
    suite, or it holds something it should not; one line that names the key.
    """
    name = options.suite_file
    path = Path(name)
    if not path.is_file() and (SUITES / f"{name}.toml").is_file():
        path = SUITES / f"{name}.toml"
    table = _read_table(path)
    own = {"target": options.target, "tasks": list(map(_read_task, options.tasks))}
    table |= {key: value for key, value in own.items() if value}
    measuring = {
        "prompts": options.max_prompts,
        "max_new_tokens": options.max_new_tokens,
        "temperatures": list(options.temperatures),
    }
    given = {"text": {"files": list(options.data)}, "measuring": measuring}
    for key, values in given.items():
        if isinstance(part := table.setdefault(key, {}), dict):
            part |= {field: value for field, value in values.items() if value}
    suite = validated(Suite, table, name)
    beside: dict[str, Any] = {}
    if any(one.drafts for one in suite.systems):
        place = options.drafts or path.parent
        beside["systems"] = tuple(
            one.model_copy(update={"drafts": one.drafts and tuple(str(place / name) for name in one.drafts)})
            for one in suite.systems
        )
    if not options.data:
        files = tuple(str(path.parent / file) for file in suite.text.files)
        beside["text"] = suite.text.model_copy(update={"files": files})
    if not options.tasks:
        folder = options.prompts or path.parent
        beside["tasks"] = tuple(
            one.model_copy(update={"file": str(folder / one.file)}) if one.file else one
            for one in suite.tasks
        )
    return suite.model_copy(update=beside)


def _read_table(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
    except UserError as error:
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.toml")))
        raise UserError(f"{error}; there are also the suites {known}") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {one_line(error)}") from error


def _read_task(text: str) -> dict[str, Any]:
    name, _, where = text.partition("=")
    if not (name and where):
        raise UserError(f"the task {text!r} must be NAME=FILE or NAME=FILE:GROUP")
    file, _, group = where.partition(":")
    return {"name": name, "file": file, "group": group or None}
