"""``clover copies``: let a trained draft copy from the text as much as does it good."""

from pathlib import Path
from typing import Annotated

import typer

from clover import options
from clover.cli.trained import load_trained, save_copy, tell_problems, texts_of
from clover.errors import UserError
from clover.files import check_output_directory


def copies(
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILE",
            help="Texts that the draft has not learnt: .txt, .jsonl, .json or .parquet; may be given several times. "
            "Best is what the target wrote.",
        ),
    ],
    output: options.Output,
    draft: options.TrainedDraft = None,
    target: options.Target = None,
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of the texts to look at.")] = 32768,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Make a copy of a Recall draft that copies from the text as much as fits some texts.

    A training does that by itself at its end, on texts that it held out.
    """
    from rich.console import Console

    from clover.drafts import RecallDraft
    from clover.measure.report.progress import Progress
    from clover.train import measure_guesses, some_batches

    check_output_directory(output, overwrite)
    name, trained = load_trained(draft, target, device, trust_remote_code)
    if not isinstance(trained, RecallDraft):
        raise UserError(f"{name} is a {trained.config.model_type} draft, which copies nothing; recall does")
    texts = texts_of(trained.target, data)
    batches = some_batches(texts, trained.target, tokens)
    tell_problems(texts)
    with Progress(Console(stderr=True)) as progress:
        progress.say("reading the texts")
        guesses = measure_guesses(trained, progress.each(batches))
    shares = trained.choose_copies(guesses)
    save_copy(trained, name, output, overwrite)
    print(_told(output, shares))


def _told(output: Path, shares: list[float] | None) -> str:
    if shares is None:
        return f"{output}: copies nothing, because it would be right at less than 1 % of the positions more"
    values = ", ".join(f"{share:.2f}" for share in shares)
    return f"{output}: copied tokens get {values} of the probability where 1, 2, … tokens match"
