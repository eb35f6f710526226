"""``clover features``: run the target over a corpus once, for several drafts to be trained from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clover import options
from clover.cli import texts
from clover.errors import UserError

if TYPE_CHECKING:
    from clover.data import FileTexts, Texts
    from clover.regenerate import RegenerateConfig
    from clover.target import TargetModel

Data = Annotated[
    list[str],
    typer.Option(metavar="FILE...", help="Training texts, as for clover train; several may follow."),
]
HiddenState = Annotated[
    str,
    typer.Option(
        metavar="KIND", help="What drafts will read: post_norm, pre_norm or low_middle_high (eagle3)."
    ),
]
MaxLength = Annotated[int, typer.Option(metavar="N", min=3, help="Longest text, in tokens.")]
BatchTokens = Annotated[int, typer.Option(metavar="N", min=3, help="Tokens that the target runs at once.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the store in this output directory.")]


def features(
    data: Data,
    output: options.Output,
    more_data: texts.MoreData = None,
    regenerate: texts.Regenerate = False,
    regenerate_minutes: texts.RegenerateMinutes = None,
    batch_size: texts.BatchSize = 64,
    hidden_state: HiddenState = "post_norm",
    max_length: MaxLength = 2048,
    batch_tokens: BatchTokens = 4096,
    resume: Resume = False,
    target: options.Target = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    seed: options.Seed = 0,
) -> None:
    """Store the target's hidden states of training texts; clover train --features learns from them."""
    from clover.regenerate import RegenerateConfig
    from clover.target import HIDDEN_STATES

    if hidden_state not in HIDDEN_STATES:
        raise UserError(f"--hidden-state is {hidden_state!r}; it must be one of {', '.join(HIDDEN_STATES)}")
    if output.is_dir() and any(output.iterdir()) and not resume:
        raise UserError(f"{output} is not empty; go on with it by --resume, or choose another directory")
    model = texts.load_target(target, dtype, device, trust_remote_code)
    opened = texts.open_texts(model, (*data, *(more_data or ())), regenerate)
    source: Texts = opened
    if regenerate:
        rules = RegenerateConfig(
            max_length=max_length, seed=seed, batch_size=batch_size, max_minutes=regenerate_minutes
        )
        source = _write_anew(model, opened, rules, output)
    _store(model, source, output, resume, (hidden_state, max_length, batch_tokens))
    options.tell_left_out(opened.problems.values())


def _write_anew(
    model: "TargetModel", opened: "FileTexts", rules: "RegenerateConfig", output: Path
) -> "Texts":
    """What the target writes; once the store has been begun, what it has written."""
    from clover.data import Texts

    path = texts.written_path(model, opened, rules, output)
    begun = (output / "index.json").exists()
    return Texts(texts.write_anew(model, opened, rules, path, finished=begun).samples)


def _store(
    model: "TargetModel", source: "Texts", output: Path, resume: bool, settings: tuple[str, int, int]
) -> None:
    from clover.features import FeatureStore, StoreConfig, write_features
    from clover.report.progress import Progress
    from clover.target import weights_fingerprint

    config = StoreConfig(weights_fingerprint(model), source.fingerprint, *settings)
    with Progress() as progress:
        progress.begin(len(source))

        def show(done: int, tokens: int) -> None:
            progress.reach(done, f"{done:,} texts, {tokens:,} tokens")

        def tell(size: int) -> None:
            progress.log(f"{len(source):,} texts, about {size / 1e6:,.0f} MB of hidden states")

        write_features(model, source, config, output, resume, show, tell)
    print(f"{output}: {FeatureStore(output).tokens:,} tokens; clover train --features {output}")
