"""``clover features``: run the target over a corpus once, to train several drafts from its hidden states."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clover.cli.texts import TextOptions, write_anew
from clover.errors import UserError
from clover.files import check_output_directory
from clover.options import next_command, option, print_left_out, takes_options

if TYPE_CHECKING:
    from clover.data import Texts
    from clover.target import TargetWeights


@dataclass(frozen=True, kw_only=True)
class FeaturesOptions(TextOptions):
    """The options of `clover features`."""

    output: Annotated[
        Path,
        option("Output directory; it grows shard by shard, and --resume continues it.", metavar="DIR"),
    ]
    hidden_state: Annotated[
        str,
        option(
            "Hidden states to store: post_norm, pre_norm or low_middle_high (for eagle3; it includes post_norm).",
            metavar="KIND",
        ),
    ] = "post_norm"
    batch_tokens: Annotated[int, option("Tokens in a forward pass of the target.", min=3)] = 4096


@takes_options
def features(options: FeaturesOptions) -> None:
    """Store the target's hidden states of training texts, as input for `clover train --features`."""
    from clover.data.features import has_begun
    from clover.target import HIDDEN_STATES

    output, kind = options.output, options.hidden_state
    if kind not in HIDDEN_STATES:
        raise UserError(f"--hidden-state is {kind!r}; it must be one of {', '.join(HIDDEN_STATES)}")
    if not options.files:
        raise UserError("there are no texts to read; give --data FILE")
    begun = has_begun(output)
    if not options.resume:
        if begun:
            raise UserError(f"{output} already holds hidden states; continue with --resume, or delete it")
        check_output_directory(output)
    model = options.load_target()
    opened = options.open(model)
    source: Texts = opened
    resume = options.resume
    if options.regenerate:
        # If the store has begun, the texts that it needs are already written.
        source, _ = write_anew(options, model, opened, resume=begun, finished=begun)
        resume = resume and begun
    _store(model, source, options, resume)
    print_left_out(opened.problems.values(), opened.looked_at)


def _store(model: "TargetWeights", source: "Texts", options: FeaturesOptions, resume: bool) -> None:
    from clover.data.features import FeatureStore, StoreConfig, write_features
    from clover.measure.report.progress import Progress
    from clover.measure.report.words import number_of
    from clover.target import weights_fingerprint

    settings, output = (options.hidden_state, options.max_length, options.batch_tokens), options.output
    config = StoreConfig(weights_fingerprint(model), source.fingerprint, model.dtype_name, *settings)
    with Progress() as progress:

        def show(done: int, tokens: int) -> None:
            progress.go_on(len(source), done, f"{number_of(done, 'text')}, {number_of(tokens, 'token')}")

        def show_size(size: int) -> None:
            progress.log(f"{number_of(len(source), 'text')}, about {size / 1e6:,.0f} MB of hidden states")
            if source.left_out:
                progress.log(source.left_out)

        write_features(model, source, config, output, resume, show, show_size)
    print(f"{output}: hidden states of {FeatureStore(output).tokens:,} tokens")
    more = "--features", str(output), "--output", "DIR"
    print(next_command("learn from them", "train", options, *more), file=sys.stderr)
