"""``clover vocabulary``: let a trained draft propose from the frequent tokens only."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from clover.cli.trained import CopyOptions, load_trained, print_problems, save_copy, texts_of
from clover.errors import UserError
from clover.files import check_output_directory
from clover.options import option, takes_options

if TYPE_CHECKING:
    from clover.data import Sample, Texts
    from clover.measure.report.progress import Progress


@dataclass(frozen=True, kw_only=True)
class VocabularyOptions(CopyOptions):
    """The options of `clover vocabulary`."""

    data: Annotated[
        tuple[str, ...],
        option(
            "Texts whose tokens are counted: .txt, .jsonl, .json or .parquet; may be given several times. Best is "
            "what the target wrote for the training (OUTPUT.….written.jsonl).",
            metavar="FILE",
        ),
    ]
    size: Annotated[int, option("Tokens that the draft shall propose from.", min=1)]


@takes_options
def vocabulary(options: VocabularyOptions) -> None:
    """Make a copy of a draft that proposes from the most frequent tokens of some texts: faster, as lossless."""
    from clover.data import token_counts
    from clover.drafts.vocabulary import check_size, frequent_tokens
    from clover.measure.report.progress import Progress

    check_output_directory(options.output, options.overwrite)
    name, whole = load_trained(options)
    model, size = whole.target, options.size
    check_size(size, model.vocab_size)
    parts = texts_of(model, options.data)
    with Progress() as progress:
        progress.say("reading the texts")
        counts = token_counts(_known(parts, model.vocab_size, progress), model.vocab_size)
    print_problems(parts)
    if not counts.sum():
        raise UserError("the texts hold no token that is learnt; give others")
    if whole.d2t is not None and size > len(whole.d2t):
        print(f"{name} proposes from {len(whole.d2t):,} tokens now; more take longer", file=sys.stderr)
    tokens = frequent_tokens(counts, size)
    whole.reduce_vocabulary(tokens)
    save_copy(whole, name, options)
    share = float(counts[tokens].sum() / counts.sum())
    print(
        f"{options.output}: proposes from {size:,} of {model.vocab_size:,} tokens, {share:.1%} of those in the texts"
    )


def _known(parts: "Sequence[Texts]", vocab_size: int, progress: "Progress") -> "Iterator[Sample]":
    """Yield all samples, and show how many; UserError at one with a token that the target does not know."""
    from clover.data.batching import check_tokens

    for number, sample in enumerate(chain.from_iterable(parts), start=1):
        check_tokens([sample], vocab_size)
        yield sample
        progress.say(f"counting the tokens: {number:,} texts")
