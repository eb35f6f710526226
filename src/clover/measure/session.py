"""The input of every command that measures: a target, its drafts and prompts, loaded once.

`Session.load` raises UserError for everything wrong with a model or a file of prompts, before any time is spent on
measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from clover import assets, packaged
from clover.api import make_engine
from clover.data.tasks import Chosen, Task, TaskPrompt, choose_fitting, read_tasks
from clover.drafting import Tree, parse_tree
from clover.drafts import DraftModel, load_usable
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.measure.report.provenance import Provenance
from clover.measure.timing import make_batches
from clover.options import ModelOptions, command_line
from clover.target import TargetModel

DEVELOPMENT = "development"  # a group of the embedded prompts that no published number uses
HELD_OUT = assets.HELD_OUT_PROMPTS.stem  # the group of published numbers
# Trees that fit every draft, or need none.
PLAIN, AUTO, OWN, LOOKUP = "plain", "auto", "own", "lookup"


@dataclass(frozen=True, eq=False)
class LoadedDraft:
    """A draft of a session: its name in reports, the directory or hub name of its files, and the model."""

    name: str
    place: str
    model: DraftModel

    @property
    def system(self) -> str:
        """Return the name of the draft's system."""
        return str(self.model.config.model_type)


@dataclass(frozen=True, eq=False)
class Session:
    """A target, its drafts, and prompts that leave room for `max_new_tokens` each.

    `left_out` counts the prompts that are too long for the target's context.
    """

    target: TargetModel
    target_name: str
    drafts: tuple[LoadedDraft, ...]
    prompts: tuple[TaskPrompt, ...]
    max_new_tokens: int
    left_out: int = 0

    @classmethod
    def load(
        cls,
        options: ModelOptions,
        drafts: Sequence[str | None] | None = (None,),
        files: Sequence[str] | Path | None = None,
        max_new_tokens: int = 128,
        max_prompts: int = 24,
        group: str = DEVELOPMENT,
    ) -> Self:
        """Load the models and choose prompts; UserError if any of them cannot be used.

        Args:
            options: the target, and how to load it.
            drafts: directories, hub names, or names of drafts of this package. None in the list is the package's
                default for the target; None instead of the list means all drafts that the package has for it.
            files: files of prompts; `choose_prompts` explains the defaults, and the other arguments.
            group: the group of embedded prompts to use.
        """
        files = (str(files),) if isinstance(files, Path) else files or ()
        tasks = read_tasks(files) if files else []  # first, because loading a target may take long
        try:
            if options.target is not None and (drafts is None or None in drafts):
                packaged.check_has_draft(options.target)
            target = TargetModel.load(options.target or assets.TARGET, **options.loading)
            loaded = _load_drafts(drafts, target, options.target)
        except packaged.NoDraftError as error:
            raise UserError(
                "a target was given but no draft, and a draft is what is measured here; give its draft, or train one "
                "(clover train)"
            ) from error
        chosen = _choose(tasks, target, max_new_tokens, max_prompts, group)
        name = options.target or "embedded"
        return cls(target, name, loaded, tuple(chosen.prompts), max_new_tokens, chosen.left_out)

    @property
    def left_out_words(self) -> str:
        """Return how many prompts do not fit, as an addition to the number of those that do; "" if all fit."""
        return f" ({self.left_out} more do not fit into the context)" if self.left_out else ""

    @property
    def draft(self) -> LoadedDraft:
        """Return the first draft."""
        return self.drafts[0]

    def engine(
        self, tree: str | Tree, draft: LoadedDraft | None = None, compile: bool | str = False
    ) -> Engine:
        """Return an engine that grows `tree` with the draft, by default the first one of the session.

        UserError if the tree is unknown, or deeper than the draft.
        """
        tree = parse_tree(tree)
        if not tree.needs_draft:
            return make_engine(self.target, None, tree, compile)
        draft = draft or self.draft
        return make_engine(self.target, draft.model, tree, compile, draft.place)

    def requests(self, temperature: float = 0.0, seed: int = 0) -> list[Request]:
        """Return a request for each prompt; number i is sampled with `seed + i`."""
        return [request for (request,) in self.batches(1, temperature, seed)]

    def batches(self, size: int, temperature: float = 0.0, seed: int = 0) -> list[list[Request]]:
        """Return all prompts in batches of equal size, as `make_batches` does."""
        tokens = [one.tokens for one in self.prompts]
        return make_batches(tokens, size, temperature, self.max_new_tokens, self.target.longest_run, seed)

    def provenance(self, command: str, options: Any, files: str = "") -> Provenance:
        """Return the provenance of a result of this session; `files` as in `clover.options.command_line`."""
        return Provenance.here(command_line(command, options, files), self.target.device, self.target.dtype)


def _load_drafts(
    drafts: Sequence[str | None] | None, target: TargetModel, named: str | None
) -> tuple[LoadedDraft, ...]:
    given = None if named is None else target
    if drafts is None and named is not None:
        drafts = [one.name for one in packaged.drafts_of(target, named)]
    found = []
    for name in assets.DRAFTS if drafts is None else drafts:
        place = packaged.draft_place(name, given, named or "")
        found.append(LoadedDraft(packaged.draft_name(name, place), place, load_usable(place, target)))
    return tuple(found)


def choose_prompts(files: Sequence[str], target: TargetModel, max_new_tokens: int, limit: int) -> Chosen:
    """Return at most `limit` prompts that leave room for the new tokens.

    They come from the files. The default is MT-bench's questions for SmolLM2, and for other targets the embedded
    prompts for development. UserError if the target has no tokenizer, a file cannot be used, or no prompt fits.
    """
    return _choose(read_tasks(files) if files else [], target, max_new_tokens, limit, DEVELOPMENT)


def _choose(tasks: Sequence[Task], target: TargetModel, new_tokens: int, limit: int, group: str) -> Chosen:
    tasks, tokenizer = tasks or _default_tasks(target, group), target.require_tokenizer()
    return choose_fitting(tasks, tokenizer, target.longest_run, new_tokens, limit)


def _default_tasks(target: TargetModel, group: str) -> list[Task]:
    if packaged.is_smollm2(target):
        return read_tasks([assets.MT_BENCH])
    return [task for task in read_tasks([assets.HELD_OUT_PROMPTS]) if task.group == group]
