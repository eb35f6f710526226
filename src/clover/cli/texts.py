"""What commands that read training text share: their options, the target, and texts that it writes anew."""

import math
import sys
import time
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clover import options
from clover.errors import UserError
from clover.files import append_to_name, locked_file
from clover.options import panel

if TYPE_CHECKING:
    from clover.data import FileTexts, Sample
    from clover.regenerate import RegenerateConfig
    from clover.target import TargetWeights

_given, _models = panel(), panel("Models")


@dataclass(frozen=True, kw_only=True)
class TextOptions(options.ModelOptions):
    """What `clover train` and `clover features` learn from, and where they write."""

    output: options.Output
    data: Annotated[
        tuple[str, ...],
        _given("Training texts: .txt, .jsonl, .json or .parquet; several may follow.", metavar="FILE..."),
    ] = ()
    more_data: Annotated[tuple[str, ...], typer.Argument(metavar="FILE", help="More files of --data.")] = ()
    regenerate: Annotated[
        bool, _given("First let the target write the answers itself, in place of the data's.")
    ] = False
    regenerate_minutes: Annotated[
        float | None, _given("Stop writing after this time and take the texts there are.", metavar="M", min=0)
    ] = None
    batch_size: Annotated[
        int, _given("Texts that --regenerate writes together; less takes less memory.", min=1)
    ] = 64
    max_length: Annotated[int, _given("Longest text, in tokens.", min=3)] = 2048
    resume: Annotated[bool, _given("Go on with what was begun in this output directory.")] = False
    dtype: Annotated[
        str | None,
        _models(
            "bfloat16 or float32. Left out: the one in which this machine multiplies faster.", metavar="DTYPE"
        ),
    ] = None
    seed: Annotated[
        int,
        _given(
            "Decides what is drawn: starting values, order, sampled texts.", metavar="N", min=0, max=2**62
        ),
    ] = 0

    def __post_init__(self) -> None:
        if self.regenerate_minutes is not None and not self.regenerate:
            raise UserError("--regenerate-minutes bounds what --regenerate writes; give both, or neither")

    @property
    def files(self) -> tuple[str, ...]:
        """All training texts."""
        return self.data + self.more_data

    @property
    def rules(self) -> "RegenerateConfig":
        """How the target writes texts anew."""
        from clover.regenerate import RegenerateConfig

        return RegenerateConfig(
            max_length=self.max_length,
            seed=self.seed,
            batch_size=self.batch_size,
            max_minutes=self.regenerate_minutes,
        )

    def load_target(self) -> "TargetWeights":
        """The target, the embedded one by default; UserError if it cannot be loaded."""
        from clover.assets import TARGET
        from clover.measure.report.progress import Progress
        from clover.target import TargetModel

        with Progress() as progress:
            progress.say("loading the target")
            return TargetModel.load(
                self.target or TARGET, **replace(self, dtype=self.dtype or "fastest").loading
            )

    def open(self, target: "TargetWeights") -> "FileTexts":
        """The texts of the files, with a stand-in for each answer that the target is to write.

        UserError if a file cannot be read, or the target has no tokenizer.
        """
        from clover.data import FileTexts
        from clover.measure.report.progress import Progress

        tokenizer = target.require_tokenizer()
        with Progress() as progress:
            progress.say("looking at the texts")
            return FileTexts(self.files, tokenizer, target.eos_token_ids, self.regenerate, target.vocab_size)


def has_written(output: Path) -> bool:
    """Whether an interrupted run has begun to write texts beside `output`."""
    return any(output.parent.glob(f"{escape(output.name)}.*.regenerated.jsonl"))


def write_anew(
    given: TextOptions,
    target: "TargetWeights",
    texts: "FileTexts",
    resume: bool = False,
    finished: bool = False,
) -> "tuple[list[Sample], float]":
    """Let the target write the answers into a file beside the output, which is continued where it is there.

    So named, a run with another target, other data or other options never takes this one's answers. Returns them, and
    the seconds that it took, interrupted runs included.

    Args:
        resume: the file must be there.
        finished: take what it holds.
    """
    from clover.measure.report.progress import Progress
    from clover.regenerate import read_regenerated, regenerate, written_name, written_seconds

    rules = given.rules
    name = written_name(target, texts.fingerprint, rules)
    path = append_to_name(given.output, f".{name}.regenerated.jsonl")
    if resume and not path.exists():
        raise UserError(
            f"there is nothing to resume: {path} does not exist; resume with the same target, data and options"
        )
    if finished:
        return read_regenerated(path), written_seconds(path)
    if path.exists():
        print(f"goes on from the texts in {path}; delete it to write all anew", file=sys.stderr)
    with locked_file(path), Progress() as progress:
        progress.say("the target writes")
        before, began, told = written_seconds(path), time.monotonic(), False

        def show(written: int, tokens: int) -> None:
            nonlocal told
            limit = math.inf if rules.max_minutes is None else 60 * rules.max_minutes
            spent = (before + time.monotonic() - began) / limit if limit else 1.0
            share = max(written / len(texts), spent)
            progress.go_on(1.0, share, f"the target writes: {written:,} texts, {tokens:,} tokens")
            if not told and texts.left_out:
                progress.log(texts.left_out)
            told = True

        samples = regenerate(target, texts, rules, path, show)
    return samples, written_seconds(path)
