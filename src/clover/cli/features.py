"""``clover features``: run the target over a corpus once, for several drafts to be trained from."""

import sys
from typing import Annotated

import typer

from clover import options
from clover.cli import texts
from clover.errors import UserError

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
    from clover.data import Texts
    from clover.features import FeatureStore, StoreConfig, store_bytes, write_features
    from clover.regenerate import RegenerateConfig
    from clover.report.progress import Progress
    from clover.target import HIDDEN_STATES, weights_fingerprint

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
        path = texts.written_path(model, opened, rules, output)
        begun = (output / "index.json").exists()
        source = Texts(texts.write_anew(model, opened, rules, path, finished=begun).samples)
    config = StoreConfig(
        weights_fingerprint(model), source.fingerprint, hidden_state, max_length, batch_tokens
    )
    size = store_bytes(model, source, hidden_state)
    print(f"{len(source):,} texts, about {size / 1e6:,.0f} MB of hidden states", file=sys.stderr)
    with Progress() as progress:
        progress.begin(len(source))

        def show(done: int, tokens: int) -> None:
            progress.reach(done, f"{done:,} texts, {tokens:,} tokens")

        write_features(model, source, config, output, resume, show)
    options.tell_left_out(opened.problems.values())
    store = FeatureStore(output)
    print(f"{output}: {store.tokens:,} tokens; clover train --features {output}")
