"""Drafts for a chat model by plain commands: `clover write`, `clover features`, then `clover train` for each draft.

Each command is shown before it runs. One that has finished is not run again; one that was stopped continues.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import typer

from clover.cli.main import run as run_clover
from clover.data.features import FeatureStore, has_begun, read_index
from clover.drafts.config import all_options, check_draft_options, check_names
from clover.drafts.loading import find_system
from clover.errors import UserError
from clover.files import checksum, locked_directory, write_json
from clover.train import TrainConfig, checkpoint_path, draft_fields, named_recipe
from clover.train.recipes import DEFAULT, PAPER
from experiments.recipes.begun import check_begun
from experiments.recipes.options import ChatRecipeOptions
from experiments.recipes.prompts import accept_prompts

SYSTEMS = ("recall", "clover2", "clover1", "medusa", "eagle", "eagle3")
PAPERS = ("clover1", "clover2", "eagle")
COMPARED = ("recall", "clover2", "eagle")  # their differences are small, so they get a second seed
_WIDE = "low_middle_high"  # this kind of store also has the states after the final norm
_PASS_TOKENS = 512  # on a GPU, larger passes than a step would only make fewer steps of the same tokens


@dataclass(frozen=True)
class Training:
    """One draft: a system, a recipe, a seed, and `fields` of its configuration as `--set` reads them."""

    system: str
    recipe: str = DEFAULT
    seed: int = 0
    fields: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its directory.

        >>> Training("clover1", "paper", 1, ("connection=none",)).name
        'clover1-connection-none-paper-seed1'
        """
        changed = [field.replace("=", "-") for field in self.fields]
        paper, seed = [PAPER] * (self.recipe == PAPER), [f"seed{self.seed}"] * (self.seed != 0)
        return "-".join([self.system, *changed, *paper, *seed])

    @property
    def hidden_state(self) -> str:
        """Return the kind of hidden states that the draft reads; UserError if the draft cannot be made."""
        kind: Any = find_system(self.system).config_class
        fields = named_recipe(self.recipe, self.system)[1] | draft_fields(self.fields)
        check_names(kind, fields)
        check_draft_options(kind, fields, self.name)
        return str(all_options(kind, fields)["hidden_state"])

    @property
    def arguments(self) -> list[str]:
        """Return the options of `clover train` that choose this draft."""
        chosen = ["--system", self.system, "--recipe", self.recipe, "--seed", str(self.seed)]
        return [*chosen, *(word for field in self.fields for word in ("--set", field))]


def plan_trainings(options: ChatRecipeOptions) -> list[Training]:
    """Return the drafts that the options ask for, in the order in which they are trained."""
    found = []
    for recipe in options.recipes or (DEFAULT, PAPER):
        known = [one for one in SYSTEMS if recipe == DEFAULT or one in PAPERS]
        for given, seed in product(options.systems or known, options.seeds or (0, 1)):
            system, _, fields = given.partition(":")
            if not options.recipes and recipe == PAPER and system not in PAPERS:
                continue
            if options.seeds or seed == 0 or (system in COMPARED and not fields and recipe == DEFAULT):
                found.append(Training(system, recipe, seed, tuple(filter(None, fields.split(",")))))
    return sorted(found, key=lambda one: (one.seed, one.recipe))  # a second seed comes after all others


def make_drafts(options: ChatRecipeOptions) -> None:
    """Run the commands; see the head of this file.

    Raises:
        UserError: an option or the file of prompts cannot be used, or the work directory belongs to another run.
        typer.Exit: a command failed or was interrupted.
    """
    plan = plan_trainings(options)
    kinds = [training.hidden_state for training in plan]  # what is wrong with a draft shows before the hours
    with locked_directory(options.folder):
        files = _write(options)
        for training, kind in zip(plan, kinds, strict=True):
            _train(options, training, _store(options, kind, _WIDE in kinds, files))


def _clover(options: ChatRecipeOptions, command: str, *arguments: object) -> None:
    """Run one command of Clover on the target."""
    device = ["--device", options.device] if options.device else []
    shown = [command, "--target", options.target, "--dtype", options.dtype, *device, *map(str, arguments)]
    typer.echo(f"$ clover {shlex.join(shown)}", err=True)
    if code := run_clover(shown):
        raise typer.Exit(code)


def _write(options: ChatRecipeOptions) -> list[Path]:
    """Let the target write its own prompts and answers, then answers to the prompts of the file that may be used."""
    work, own, written = options.folder, options.own, options.texts - options.own
    begun, prompts = work / "begun.json", work / "prompts.jsonl"
    settings = ("target", "dtype", "texts", "max_length")
    here: dict[str, Any] = {name: getattr(options, name) for name in settings}
    here |= {"own_prompts": own, "prompts": None if options.prompts is None else checksum(options.prompts)}
    here |= {"apart": [checksum(file) for file in options.apart]} if options.apart else {}
    check_begun(work, here)
    if options.prompts is None and not own:
        raise UserError("there are no prompts; give --prompts FILE, or more than 0 --own-prompts")
    if not begun.exists():
        if options.prompts is not None:
            found = accept_prompts(options.prompts, prompts, options.apart)
            if skipped := sum(one.skipped for one in found):
                typer.echo(
                    f"skipped {skipped:,} prompts that ask nothing, or resemble those of --apart", err=True
                )
            write_json(work / "sources.json", {"sources": [asdict(source) for source in found]})
        write_json(begun, here)
    files = []
    for name, texts, given in (("own", own, ()), ("written", written, ("--prompts", prompts))):
        if texts and (not given or options.prompts is not None):
            files.append(work / f"{name}.jsonl")
            if not (work / f"{name}.origin.json").exists():  # it is written at the end
                sizes = (
                    "--texts",
                    texts,
                    "--max-length",
                    options.max_length,
                    "--batch-size",
                    options.batch_size,
                )
                _clover(options, "write", *given, *sizes, "--output", files[-1])
    return files


def _store(options: ChatRecipeOptions, kind: str, wide: bool, files: Sequence[Path]) -> Path:
    """Return a finished store with hidden states of a kind.

    The store of three layers has the states after the final norm, too. Where it is `wide`, it serves both kinds.
    """
    kind = _WIDE if kind == "post_norm" and wide else kind
    store = options.folder / f"features-{kind}"
    if not has_begun(store) or not read_index(store).finished:
        resume = ["--resume"] if has_begun(store) else []
        how = ("--hidden-state", kind, "--max-length", options.max_length, "--output", store, *resume)
        _clover(options, "features", "--data", *files, *how)
    return store


def _train(options: ChatRecipeOptions, training: Training, store: Path) -> None:
    """Train one draft on `options.tokens` tokens, unless it is there."""
    config = TrainConfig(output=str(options.output / training.name), system=training.system)
    if Path(config.output).exists():
        return
    epochs = options.tokens / (FeatureStore(store).tokens * (1 - config.validation_share))
    how = ["--features", store, "--max-length", options.max_length, "--epochs", epochs]
    resume = ["--resume"] if checkpoint_path(config).exists() else []
    output = ["--batch-tokens", _PASS_TOKENS, "--output", config.output, *resume]
    _clover(options, "train", *training.arguments, *how, *output)
