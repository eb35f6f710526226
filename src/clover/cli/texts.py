"""Code shared by the commands that read training texts: their options, the target, and texts that it rewrites."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clover import options
from clover.errors import UserError
from clover.files import append_to_name, locked_file
from clover.options import argument, panel

if TYPE_CHECKING:
    from clover.data import FileTexts
    from clover.target import TargetWeights
    from clover.write import WriteConfig, Writer

_given, _models = panel(), panel("Models")
_WRITTEN = ".written.jsonl"  # the suffix of a file of answers
_REGENERATED = ".regenerated.jsonl"  # the suffix in earlier versions, whose files contain only tokens


@dataclass(frozen=True, kw_only=True)
class TextOptions(options.ModelOptions):
    """The options of `clover train` and `clover features` for their texts and their output."""

    output: options.Output
    data: Annotated[
        tuple[str, ...],
        _given(
            "Training texts: one or more .txt, .jsonl, .json or .parquet files, or OWNER/NAME of a data set on the "
            "Hugging Face Hub.",
            metavar="FILE...",
        ),
    ] = ()
    more_data: Annotated[tuple[str, ...], argument("More files of --data.", metavar="FILE")] = ()
    regenerate: Annotated[
        bool, _given("First let the target write the answers anew, instead of those in the data.")
    ] = False
    regenerate_minutes: Annotated[
        float | None, _given("Stop --regenerate after this time, and use its texts.", metavar="M", min=0)
    ] = None
    batch_size: Annotated[
        int, _given("Texts in a batch of --regenerate; smaller batches need less memory.", min=1)
    ] = 64
    max_length: Annotated[int, _given("Maximum length of a text in tokens.", min=3)] = 2048
    resume: Annotated[bool, _given("Continue an interrupted run with the same output directory.")] = False
    dtype: Annotated[
        str | None,
        _models(
            "bfloat16 or float32. Default: the one with faster products on this machine.", metavar="DTYPE"
        ),
    ] = None
    seed: Annotated[
        int,
        _given("Random seed of starting values, order and sampled texts.", metavar="N", min=0, max=2**62),
    ] = 0

    def __post_init__(self) -> None:
        if self.regenerate_minutes is not None and not self.regenerate:
            raise UserError("--regenerate-minutes limits --regenerate; give both, or neither")

    @property
    def files(self) -> tuple[str, ...]:
        """Return all training texts."""
        return self.data + self.more_data

    @property
    def rules(self) -> "WriteConfig":
        """Return the settings with which the target rewrites texts."""
        from clover.write import WriteConfig

        return WriteConfig(
            max_length=self.max_length,
            seed=self.seed,
            batch_size=self.batch_size,
            max_minutes=self.regenerate_minutes,
        )

    def load_target(self) -> "TargetWeights":
        """Load the target, the embedded one by default; UserError if it cannot be loaded."""
        return load_fast(self)

    def open(self, target: "TargetWeights") -> "FileTexts":
        """Open the files; UserError if one cannot be read, or the target has no tokenizer."""
        return open_files(self.files, target)


def load_fast(given: options.ModelOptions) -> "TargetWeights":
    """Load the target, by default the embedded one, in the faster dtype unless one is set; UserError if that fails."""
    from clover.assets import TARGET
    from clover.measure.report.progress import Progress
    from clover.target import TargetModel
    from clover.target.loading import MANY_ROWS

    with Progress() as progress:
        progress.say("loading the target")
        if given.weights is None:
            given = replace(given, dtype=given.dtype or "fastest")
        return TargetModel.load(given.target or TARGET, **given.loading, rows=MANY_ROWS)


def open_files(files: Sequence[str | Path], target: "TargetWeights") -> "FileTexts":
    """Open training texts; UserError if a file cannot be read, or the target has no tokenizer."""
    from clover.data import FileTexts
    from clover.measure.report.progress import Progress

    tokenizer = target.require_tokenizer()
    with Progress() as progress:
        progress.say("looking at the texts")
        return FileTexts(files, tokenizer, target.eos_token_ids, target.vocab_size)


def has_written(output: Path) -> bool:
    """Return True if an interrupted run left a file of answers beside `output`."""
    return any(any(output.parent.glob(f"{escape(output.name)}.*{name}")) for name in (_WRITTEN, _REGENERATED))


def write_anew(
    given: TextOptions,
    target: "TargetWeights",
    texts: "FileTexts",
    resume: bool = False,
    finished: bool = False,
) -> "tuple[FileTexts, float]":
    """Let the target write the answers into a file beside the output; an existing file is continued.

    Its name depends on target, data and options, so that a run with others never reads these answers.

    Args:
        given: the options of the command.
        target: the model that writes.
        texts: the prompts.
        resume: whether the file must exist.
        finished: whether to write nothing, and return the answers in the file.

    Returns:
        the answers, and the seconds that they took, interrupted runs included.
    """
    from clover.write import Writer, writer_hash

    name = writer_hash(target, texts.fingerprint, given.rules)
    path = append_to_name(given.output, f".{name}{_WRITTEN}")
    if resume and not path.exists():
        for earlier in given.output.parent.glob(f"{escape(given.output.name)}.*{_REGENERATED}"):
            raise UserError(f"{earlier} is of an earlier version; begin again, with --data {earlier}")
        raise UserError(
            f"there is nothing to resume: {path} does not exist; resume with the same target, data and options"
        )
    with locked_file(path):
        writer = Writer(target, given.rules, path, texts.fingerprint)
        if not finished:
            run_writer(writer, texts)
    return open_files([path], target), writer.seconds


def run_writer(writer: "Writer", texts: "FileTexts | None", number: int | None = None) -> None:
    """Write texts, show progress and the time left, and print what was left out.

    Args:
        writer: the writer, which has its file.
        texts: the prompts; None to let the target write them, too.
        number: how many texts to write; None for all prompts.
    """
    from clover.measure.report.progress import Progress
    from clover.measure.report.words import number_of

    total, began, told = number or len(texts or ()), time.monotonic(), False
    minutes, before = writer.config.max_minutes, writer.seconds
    if writer.path.exists():
        print(f"continues the texts in {writer.path}; to write all of them anew, delete it", file=sys.stderr)
    with Progress() as progress:
        progress.say("the target writes")

        def show(written: int, tokens: int) -> None:
            nonlocal told
            spent = 0.0 if minutes is None else (before + time.monotonic() - began) / (60 * minutes or 1.0)
            line = f"the target writes: {number_of(written, 'text')}, {number_of(tokens, 'token')}"
            share = min((written + writer.begun) / max(total, 1), 1.0)
            progress.go_on(1.0, max(share, spent, progress.done), line)
            if not told and texts is not None and texts.left_out:
                progress.log(texts.left_out)
                told = True

        if texts is None:
            writer.write_with_prompts(total, show)
        else:
            writer.write(islice(texts.records(), number), show)
    options.print_left_out(writer.left_out.values(), writer.texts + len(writer.left_out))
    if writer.missing:
        count = number_of(writer.missing, "later answer")
        print(f"not written: {count}, because a conversation was too long or was cut off", file=sys.stderr)
