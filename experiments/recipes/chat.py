"""Drafts for a chat model: prompts that may be used, the model's own answers, hidden states, then draft after draft.

Whatever a stage leaves in the work directory is whole, or is gone on with: the same command goes on where a run was
stopped. Each draft appears in the output directory when it is finished.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

from rich.console import Console

from clover.data import Record
from clover.data.features import FeatureStore, StoreConfig, has_begun, is_finished, write_features
from clover.drafts import load_draft
from clover.drafts.config import all_options, check_names, check_options
from clover.drafts.loading import find_system
from clover.errors import UserError
from clover.files import checksum, locked_directory, output_directory, write_json
from clover.measure.report.progress import Progress
from clover.target import TargetModel, weights_fingerprint
from clover.train import TrainConfig, draft_fields, named_recipe, prepare
from clover.train.recipes import DEFAULT, PAPER
from clover.train.record import read_record
from clover.train.schedule import pass_tokens, peak_rate, step_tokens
from clover.validation import read_json, validated
from clover.write import WriteConfig, Writer
from experiments.command import command_line
from experiments.recipes.begun import BEGUN, check_begun
from experiments.recipes.card import write_chat_cards
from experiments.recipes.drafts import ChatDraftFacts, finish_training, made_here
from experiments.recipes.options import ChatRecipeOptions
from experiments.recipes.prompts import accept_prompts
from experiments.recipes.text import learnt_tokens, read_texts

SYSTEMS = ("recall", "clover2", "clover1", "medusa", "eagle", "eagle3")
PAPERS = ("clover1", "clover2", "eagle")
COMPARED = ("recall", "clover2", "eagle")  # whose differences are small, so that they get a second seed
_WIDE = "low_middle_high"  # the kind of store that serves drafts of two kinds


@dataclass(frozen=True)
class Training:
    """One draft: a system by a recipe and a seed, with `fields` of its configuration that are the user's own."""

    system: str
    recipe: str = DEFAULT
    seed: int = 0
    fields: str = ""

    @property
    def name(self) -> str:
        """Return the name of its directory.

        >>> Training("clover1", "paper", 1, "connection=none").name
        'clover1-connection-none-paper-seed1'
        """
        changed = self.fields.replace("=", "-").split(",") if self.fields else []
        paper, seed = [PAPER] * (self.recipe == PAPER), [f"seed{self.seed}"] * (self.seed != 0)
        return "-".join([self.system, *changed, *paper, *seed])

    @property
    def draft(self) -> dict[str, Any]:
        """Fields of the draft's configuration that are not left at their defaults."""
        return named_recipe(self.recipe, self.system)[1] | draft_fields(filter(None, self.fields.split(",")))

    @property
    def hidden_state(self) -> str:
        """Return the kind of hidden states that the draft reads; UserError if the draft cannot be made."""
        kind: Any = find_system(self.system).config_class
        check_names(kind, self.draft)
        check_options(kind, self.draft, self.name)
        return str(all_options(kind, self.draft)["hidden_state"])


def plan_trainings(options: ChatRecipeOptions) -> list[Training]:
    """Return the drafts that are asked for, in the order in which they are trained."""
    found = []
    for recipe in options.recipes or (DEFAULT, PAPER):
        known = [one for one in SYSTEMS if recipe == DEFAULT or one in PAPERS]
        for given, seed in product(options.systems or known, options.seeds or (0, 1)):
            system, _, fields = given.partition(":")
            if not options.recipes and recipe == PAPER and system not in PAPERS:
                continue
            if options.seeds or seed == 0 or (system in COMPARED and not fields and recipe == DEFAULT):
                found.append(Training(system, recipe, seed, fields))
    return sorted(found, key=lambda one: (one.seed, one.recipe))  # a second seed comes after all others


def batch_tokens(last_step: float, device: str) -> int | None:
    """Return the tokens of a forward pass on a kind of device; None for as many as the training chooses.

    The budget is in tokens, not in minutes: on a GPU, passes larger than a step would only make fewer steps of it.

    >>> [batch_tokens(size, "cuda") for size in (100.0, 612.4, 9000.0)], batch_tokens(612.4, "cpu")
    ([512, 612, 4096], None)
    """
    if device == "cpu":
        return None
    return min(max(pass_tokens("cpu"), round(last_step)), pass_tokens(device))


@dataclass(frozen=True)
class _Published:
    """What is read of an output's `facts.json`."""

    drafts: list[ChatDraftFacts]


def run_chat_recipe(options: ChatRecipeOptions, console: Console | None = None) -> None:
    """Run all stages; see the head of this file.

    Raises:
        UserError: an option, a file or the target cannot be used, or the work directory belongs to another run; before
            anything long where possible.
        KeyboardInterrupt: a signal ended it.
    """
    plan = plan_trainings(options)
    for one in plan:
        _ = one.hidden_state  # what is wrong is found before the hours
    _read_published(options.output)
    with locked_directory(options.folder):
        _ChatRecipe(options, plan, console or Console(stderr=True)).run()


def _read_published(output: Path) -> list[ChatDraftFacts]:
    """Return the facts of the drafts in an output directory; UserError if another command wrote them."""
    noted = output / "facts.json"
    if not noted.exists():
        return []
    return validated(_Published, read_json(noted), f"{noted}, which this recipe did not write so").drafts


class _ChatRecipe:
    """The stages, with what they share."""

    def __init__(self, options: ChatRecipeOptions, plan: Sequence[Training], console: Console):
        self.options, self.plan, self.work, self.console = options, plan, options.folder, console
        self.prompts = self.work / "prompts.jsonl"
        self.target = TargetModel.load(options.target, self._dtype, options.device)
        self.target.require_tokenizer()
        self._begin()

    def run(self) -> None:
        """From the answers to the cards."""
        self._say(f"1/3 answers of the target to {self.options.texts:,} prompts")
        self._write()
        for number, training in enumerate(self.plan, start=1):
            store = self._store(training.hidden_state)
            self._say(f"3/3 draft {number} of {len(self.plan)}: {training.name}")
            self._publish(self._train(training, store))

    @property
    def _dtype(self) -> str | None:
        """Return that of the options, or what a first run has measured: states of two dtypes do not mix."""
        noted = self.work / BEGUN
        begun = noted.exists() and self.options.dtype == "fastest"
        return read_json(noted).get("dtype", "fastest") if begun else self.options.dtype

    @property
    def _command(self) -> str:
        """Return the command for the card, without names of this machine."""
        named = {"output": "DIR", "work": None, "prompts": "FILE", "target": Path(self.options.target).name}
        return command_line("recipes smollm2", replace(self.options, **named))

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False)

    def _begin(self) -> None:
        """Keep the prompts that may be used, and note what decides the answers.

        UserError if the work directory was begun with something else.
        """
        options, sources = self.options, self.work / "sources.json"
        here = {
            "target": weights_fingerprint(self.target),
            "dtype": self.target.dtype_name,
            "texts": options.texts,
            "max_length": options.max_length,
            "own_prompts": options.own,
            "prompts": None if options.prompts is None else checksum(options.prompts),
        }
        begun = (self.work / BEGUN).exists()
        if begun and options.prompts is None:  # the file is needed once
            del here["prompts"]
            if options.own_prompts is None:
                del here["own_prompts"]
        noted = check_begun(self.work, here)
        if not begun:
            if options.prompts is None and not options.own:
                raise UserError("there are no prompts; give --prompts FILE, or more than 0 --own-prompts")
            found = [] if options.prompts is None else accept_prompts(options.prompts, self.prompts)
            write_json(sources, {"sources": [asdict(source) for source in found]})
            write_json(self.work / BEGUN, here)
        self.own, self.sources = noted.get("own_prompts", 0), read_json(sources)["sources"]

    def _write(self) -> None:
        """Let the target write prompts and answers, and answer the prompts of the file."""
        files = []
        if self.own:
            files.append(self._write_file("own.jsonl", self.own, None))
            self.own = len(read_texts(self.target, files))
        if self.prompts.exists():
            records = islice(read_texts(self.target, [self.prompts]).records(), self.options.texts - self.own)
            files.append(self._write_file("written.jsonl", self.options.texts - self.own, records))
        self.texts = read_texts(self.target, files)
        self.learnt = learnt_tokens(self.texts)

    def _write_file(self, name: str, number: int, records: Iterable[Record] | None) -> Path:
        """Write texts, half of them greedily and half at temperature 1; their prompts too where there are none."""
        config = WriteConfig(max_length=self.options.max_length, batch_size=self.options.batch_size)
        writer = Writer(self.target, config, self.work / name)
        with Progress(self.console) as progress:

            def show(texts: int, tokens: int) -> None:
                progress.go_on(number, texts, f"{texts:,} answers, {tokens:,} tokens")

            if records is None:
                writer.write_with_prompts(number, show)
            else:
                writer.write(records, show)
        return writer.path

    def _store(self, hidden_state: str) -> FeatureStore:
        """Return a store with the hidden states of a kind; the target is run where there is none yet.

        The store of three layers has the states after the final norm, too. So where it is there or planned, it serves
        drafts that read these alone.
        """
        path, wider = self.work / f"features-{hidden_state}", self.work / f"features-{_WIDE}"
        planned = any(one.hidden_state == _WIDE for one in self.plan)
        if hidden_state == "post_norm" and not path.exists() and (planned or wider.exists()):
            path, hidden_state = wider, _WIDE
        config = StoreConfig(
            weights_fingerprint(self.target),
            self.texts.fingerprint,
            self.target.dtype_name,
            hidden_state,
            self.options.max_length,
        )
        begun = has_begun(path)
        if not begun or not is_finished(path):
            self._say(f"2/3 hidden states, {hidden_state}")
            with Progress(self.console) as progress:

                def show(texts: int, tokens: int) -> None:
                    progress.go_on(len(self.texts), texts, f"{texts:,} texts, {tokens:,} tokens")

                def tell(size: int) -> None:
                    progress.log(f"    about {size / 1e6:,.0f} MB")

                write_features(self.target, self.texts, config, path, begun, show, tell)
        return FeatureStore(path)

    def _train(self, training: Training, store: FeatureStore) -> ChatDraftFacts:
        config = self._config(training, store.tokens)
        output, known = Path(config.output), self._published(training.name)
        # What is published may be the draft of a run with other --tokens.
        if output.exists() and known is not None and known.seen == read_record(output).result.tokens:
            return known
        config, draft = prepare(config, self.target)
        result = finish_training(config, self.target, store, draft, self.console)
        return ChatDraftFacts(
            system=training.system,
            tokens=self.learnt,
            steps=result.steps,
            seen=result.tokens,
            minutes=round(result.seconds / 60, 1),
            parameters=load_draft(config.output, self.target).num_parameters(),
            accuracy=result.validation.accuracy if result.validation else [],
            name=training.name,
            recipe=training.recipe,
            seed=training.seed,
            lr=peak_rate(config, type(draft), self.target.hidden_size),
            made=made_here(self.target.device, self.target.dtype),
            command=self._command,
        )

    def _config(self, training: Training, tokens: int) -> TrainConfig:
        """Return how a draft is trained; a store that holds other states still has as many tokens."""
        kind, options = find_system(training.system), self.options
        settings, _ = named_recipe(training.recipe, training.system)
        config = TrainConfig(
            output=str(self.work / f"{training.name}.{options.tokens}"),
            target=Path(options.target).name,
            data=("answers of the target",),
            system=training.system,
            draft=training.draft,
            max_length=options.max_length,
            seed=training.seed,
            loss=kind.training_defaults.losses()[training.recipe],
            **settings,
        )
        learnt = tokens * (1 - config.validation_share)
        size = batch_tokens(step_tokens(config, options.tokens), self.target.device.type)
        return replace(config, epochs=options.tokens / learnt, batch_tokens=size)

    def _published(self, name: str) -> ChatDraftFacts | None:
        """Return the facts of a draft that an earlier run of the command has finished."""
        return next((one for one in _read_published(self.options.output) if one.name == name), None)

    def _publish(self, facts: ChatDraftFacts) -> None:
        """Copy a finished draft to the output, unless it is there, and write all cards anew."""
        output = self.options.output
        trained = self.work / f"{facts.name}.{self.options.tokens}"
        if not (output / facts.name).exists() or self._published(facts.name) != facts:
            ignored = shutil.ignore_patterns("*_log.jsonl")
            with output_directory(output / facts.name, overwrite=True) as folder:
                shutil.copytree(trained, folder, dirs_exist_ok=True, ignore=ignored)
        others = [one for one in _read_published(output) if one.name != facts.name]
        drafts = [asdict(one) for one in (*others, facts)]
        target = {"name": Path(self.options.target).name, "texts": len(self.texts), "own": self.own}
        write_json(output / "facts.json", {"target": target, "sources": self.sources, "drafts": drafts})
        write_chat_cards(output)
