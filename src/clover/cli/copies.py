"""``clover copies``: let a trained draft copy from the text as much as does it good."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from clover.cli.trained import CopyOptions, load_trained, print_problems, save_copy, texts_of
from clover.errors import UserError
from clover.files import check_output_directory
from clover.options import option, takes_options


@dataclass(frozen=True, kw_only=True)
class CopiesOptions(CopyOptions):
    """The options of `clover copies`."""

    data: Annotated[
        tuple[str, ...],
        option(
            "Texts that the draft has not learnt: .txt, .jsonl, .json or .parquet; may be given several times. Best is "
            "what the target wrote.",
            metavar="FILE",
        ),
    ]
    tokens: Annotated[int, option("Tokens of the texts to look at.", min=1)] = 32768


@takes_options
def copies(options: CopiesOptions) -> None:
    """Make a copy of a Recall draft that copies from the text as much as fits some texts.

    A training does that by itself at its end, on texts that it held out.
    """
    from rich.console import Console

    from clover.drafts import RecallDraft
    from clover.measure.report.progress import Progress
    from clover.train import measure_guesses, some_batches

    check_output_directory(options.output, options.overwrite)
    name, trained = load_trained(options)
    if not isinstance(trained, RecallDraft):
        raise UserError(f"{name} is a {trained.config.model_type} draft, which copies nothing; recall does")
    texts = texts_of(trained.target, options.data)
    batches = some_batches(texts, trained.target, options.tokens)
    print_problems(texts)
    with Progress(Console(stderr=True)) as progress:
        progress.say("reading the texts")
        guesses = measure_guesses(trained, progress.each(batches))
    shares = trained.fit_copies(guesses)
    save_copy(trained, name, options)
    print(_summary(options.output, shares))


def _summary(output: Path, shares: list[float] | None) -> str:
    if shares is None:
        return f"{output}: copies nothing, because it would be right at less than 1 % of the positions more"
    values = ", ".join(f"{share:.2f}" for share in shares)
    return f"{output}: copied tokens get {values} of the probability where 1, 2, … tokens match"
