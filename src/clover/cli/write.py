"""``clover write``: let the target write training texts, with given prompts or its own."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clover import options
from clover.cli.texts import load_fast, open_files, run_writer
from clover.errors import UserError
from clover.files import check_output_file, locked_file, write_json
from clover.options import option

if TYPE_CHECKING:
    from clover.target import TargetWeights
    from clover.write import WriteConfig, Writer


@dataclass(frozen=True, kw_only=True)
class WriteOptions(options.ModelOptions):
    """The options of `clover write`."""

    output: Annotated[
        Path,
        option("JSON Lines file to write; if it exists, the same command continues it.", metavar="FILE"),
    ]
    prompts: Annotated[
        Path | None,
        option(
            "File of prompts, as for `clover train --data`; answers in it are written anew. Default: a chat model "
            "also writes the prompts."
        ),
    ] = None
    texts: Annotated[
        int | None,
        option("Number of texts to write; required without --prompts. Default: one for each prompt.", min=1),
    ] = None
    max_length: Annotated[int, option("Maximum length of a text in tokens, prompt included.", min=3)] = 2048
    max_new_tokens: Annotated[
        int | None, option("Maximum number of tokens of an answer. Default: what --max-length allows.", min=1)
    ] = None
    max_minutes: Annotated[
        float | None, option("Maximum minutes, interrupted runs included.", metavar="M", min=0)
    ] = None
    temperatures: options.Temperatures = (0.0, 1.0)
    batch_size: Annotated[int, option("Texts in a batch; smaller batches need less memory.", min=1)] = 64
    seed: options.Seed = 0

    @property
    def rules(self) -> "WriteConfig":
        """Return the settings with which the target writes."""
        from clover.write import WriteConfig

        return WriteConfig(
            max_length=self.max_length,
            max_new_tokens=self.max_new_tokens,
            temperatures=self.temperatures,
            batch_size=self.batch_size,
            max_minutes=self.max_minutes,
            seed=self.seed,
        )


@options.takes_options
def write(given: WriteOptions) -> None:
    """Let the target write training texts: answers to given prompts, or prompts and answers.

    The file is input for `clover train --data` and `clover features --data`. The texts alternate between temperatures.
    """
    from clover.write import Writer

    output = given.output
    if output.suffix != ".jsonl":
        raise UserError(
            f"--output is {output}; it must end with .jsonl, because clover train reads files by their suffix"
        )
    if given.prompts is None and given.texts is None:
        raise UserError(
            "there are no prompts; give --prompts FILE, or --texts N to let a chat model write them, too"
        )
    check_output_file(output)
    target = load_fast(given)
    texts = None if given.prompts is None else open_files([given.prompts], target)
    with locked_file(output):
        writer = Writer(target, given.rules, output, "" if texts is None else texts.fingerprint)
        run_writer(writer, texts, given.texts)
        unread = {} if texts is None else texts.problems
        options.print_left_out(unread.values(), 0 if texts is None else texts.looked_at)
        _note_origin(given, target, writer, unread)
    print(f"{output}: {writer.texts:,} texts, {writer.tokens:,} tokens that the target wrote")
    more = "--data", str(output), "--output", "DIR"
    print(options.next_command("learn from them", "train", given, *more), file=sys.stderr)


def _note_origin(
    given: WriteOptions, target: "TargetWeights", writer: "Writer", unread: dict[str, str]
) -> None:
    """Write a file about the origin of the texts, and what was left out, beside them; Clover never reads it."""
    from clover.measure.report.provenance import Provenance

    origin = Provenance.here(options.command_line("write", given), target.device, target.dtype)
    facts = {"texts": writer.texts, "tokens": writer.tokens, "seconds": writer.seconds}
    facts |= {"left_out": writer.left_out, "unread": list(unread.values()), "missing_answers": writer.missing}
    write_json(given.output.with_suffix(".origin.json"), facts | {"provenance": asdict(origin)})
